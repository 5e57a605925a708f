// Jobs on stdin → results on stdout, both JSON; four at a time.
//
// job: {id, call, base_url, path, stream, body}     result: {id: {answer | chunks | error}}

export const failure = (error) => ({
  kind: error?.constructor?.name ?? typeof error,
  message: error?.message ?? String(error),
  status_code: error?.status ?? error?.statusCode ?? null,
  code: error?.code ?? error?.data?.error?.code ?? null,
  param: error?.param ?? null,
});

export async function serve(calls) {
  const parts = [];
  for await (const part of process.stdin) parts.push(part);
  const jobs = JSON.parse(Buffer.concat(parts).toString("utf8"));
  const results = {};
  const waiting = jobs.values();
  const work = async () => {
    for (const job of waiting) {
      try {
        results[job.id] = await calls[job.call](job);
      } catch (error) {
        // Whatever a client throws is what is looked at.
        results[job.id] = { error: failure(error) };
      }
    }
  };
  await Promise.all([work(), work(), work(), work()]);
  process.stdout.write(JSON.stringify(results));
}
