// Streams of events: GET /events?id=ID begins one, POST /next?id=ID sends its next event, POST /end?id=ID ends it.
const http = require("http");
const { createSession } = require("better-sse");

const streams = new Map();
const server = http.createServer(async (req, res) => {
  const url = new URL(req.url, "http://localhost");
  const id = url.searchParams.get("id");
  const stream = streams.get(id);
  if (url.pathname === "/events") {
    const session = await createSession(req, res, { retry: 50 });
    const last = Number(session.lastId) || 0;
    streams.set(id, { session, res, last });
    if (last) session.push(`again ${last}`, "again", "0");
    else session.push("begin", "begin", "0");
    return;
  }
  if (url.pathname === "/next") {
    stream.last += 1;
    stream.session.push(stream.last, "message", String(stream.last));
  } else {
    stream.res.end();
  }
  res.end();
});
server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening"));
