-- wrk ... -s wrk.lua URL -- BODY_FILE NAME=VALUE...
-- Posts the file with these headers; prints one line of JSON at the end. Times are in microseconds.
function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.body = file:read("*a")
  file:close()
  wrk.method = "POST"
  for i = 2, #args do
    local name, value = args[i]:match("^(.-)=(.*)$")
    wrk.headers[name] = value
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\nRESULT {"requests": %d, "duration": %d, "status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d, ' ..
    '"p50": %d, "p95": %d, "p99": %d, "max": %d}\n',
    summary.requests, summary.duration, e.status, e.connect, e.read, e.write, e.timeout,
    latency:percentile(50), latency:percentile(95), latency:percentile(99), latency.max))
end
