# The image of mendproxy: a virtual environment from the lock files, and nothing that could build one.

FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# The tools of the build live apart, so that what is copied below holds no pip.
RUN python -m venv /opt/build && python -m venv --without-pip /opt/venv
COPY requirements.lock requirements-build.lock ./
RUN /opt/build/bin/pip install --require-hashes -r requirements-build.lock \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --only-binary :all: --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
# Bytecode goes by hash, not by time: a copy that changes a file's time does not void it.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --no-deps --no-index dist/*.whl \
 && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib

FROM python:3.13-slim
LABEL org.opencontainers.image.title="mendproxy" \
      org.opencontainers.image.description="A reverse proxy that repairs, by a YAML policy, the requests which an OpenAI-compatible backend would refuse" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.13-slim"
ENV PATH=/opt/venv/bin:$PATH
COPY --from=build /opt/venv /opt/venv
COPY config/policy.yaml /etc/mendproxy/policy.yaml
# A policy with a fault ends the build. It also leaves the bytecode of the standard library, which the base image lacks.
RUN mendproxy check /etc/mendproxy/policy.yaml
# For MENDPROXY_LEARNED: a volume that is mounted here begins with this folder's owner. All else can be read-only.
RUN mkdir /var/lib/mendproxy && chown 10001:10001 /var/lib/mendproxy
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Of the environment, so that a command of one's own (`serve --port 9000`) still finds the policy and can be reached.
ENV MENDPROXY_CONFIG=/etc/mendproxy/policy.yaml MENDPROXY_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
# Longer than the 5 s that `health` itself waits, so that it can say what is wrong.
HEALTHCHECK --interval=15s --timeout=10s --start-period=20s --retries=3 CMD ["mendproxy", "health"]
ENTRYPOINT ["mendproxy"]
CMD ["serve"]
