// Asks for the next event only once the one before has arrived. The third comes after a reload, over the same stream;
// then the server ends the stream, and EventSource resumes behind the last event.
const fs = require("fs");
const { EventSource } = require("eventsource");

const [port, go] = process.argv.slice(2);

function fail(why) {
  console.log("failed:", why);
  process.exit(1);
}

function listen(place) {
  const base = `http://127.0.0.1:${port}${place}`;
  const id = encodeURIComponent(place);
  const say = (what) => fetch(`${base}${what}?id=${id}`, { method: "POST" }).catch(fail);
  const source = new EventSource(`${base}events?id=${id}`);
  const heard = [];
  const stream = { ready: null, resumed: null, say };
  stream.ready = new Promise((ready) => {
    stream.resumed = new Promise((resumed) => {
      source.addEventListener("begin", () => say("next"));
      source.addEventListener("message", async (event) => {
        heard.push(event.data);
        if (heard.length === 1) say("next");
        if (heard.length === 2) ready();
        if (heard.length === 3) {
          console.log(`${place} events ${heard.join(" ")}`);
          say("end");
        }
      });
      source.addEventListener("again", (event) => {
        if (JSON.parse(event.data) !== "again 3") fail(event.data);
        source.close();
        resumed();
      });
    });
  });
  return stream;
}

async function main() {
  const streams = [listen("/"), listen("/buffered/")];
  await Promise.all(streams.map((stream) => stream.ready));
  const watch = setInterval(async () => {
    if (!fs.existsSync(go)) return;
    clearInterval(watch);
    streams.forEach((stream) => stream.say("next"));
    await Promise.all(streams.map((stream) => stream.resumed));
    console.log("resumed after 3");
    process.exit(0);
  }, 20);
  console.log("ready");
}
main().catch(fail);
