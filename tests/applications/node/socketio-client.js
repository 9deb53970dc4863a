// Speaks over polling, over an upgraded connection, and over WebSocket alone; the last two once more after a reload.
const fs = require("fs");
const { io } = require("socket.io-client");

const [port, go] = process.argv.slice(2);
const url = `http://127.0.0.1:${port}`;
const data = Buffer.alloc(600000, "some data");

function fail(why) {
  console.log("failed:", why);
  process.exit(1);
}

function connect(options) {
  const socket = io(url, { forceNew: true, reconnection: false, ...options });
  socket.on("connect_error", (e) => fail(e));
  return new Promise((done) => socket.on("connect", () => done(socket)));
}

async function echo(socket, transport) {
  const [id, used, back] = await new Promise((done) =>
    socket.timeout(15000).emit("echo", data, (error, ...answer) => {
      if (error) fail(error);
      done(answer);
    }),
  );
  if (id !== socket.id || used !== transport || !data.equals(back)) fail(`${id} ${used} ${back.length}`);
}

async function main() {
  const polling = await connect({ transports: ["polling"] });
  await echo(polling, "polling");
  console.log("polling echoed");
  polling.close();

  const upgraded = await connect({ transports: ["polling", "websocket"] });
  if (upgraded.io.engine.transport.name !== "websocket") {
    await new Promise((done) => upgraded.io.engine.once("upgrade", done));
  }
  await echo(upgraded, "websocket");
  console.log("upgraded to websocket");

  const alone = await connect({ transports: ["websocket"] });
  await echo(alone, "websocket");
  console.log("websocket echoed");
  for (const socket of [upgraded, alone]) socket.on("disconnect", (why) => fail(why));
  const before = [upgraded.id, alone.id];
  const watch = setInterval(async () => {
    if (!fs.existsSync(go)) return;
    clearInterval(watch);
    await echo(upgraded, "websocket");
    await echo(alone, "websocket");
    if (before[0] !== upgraded.id || before[1] !== alone.id) fail("other connections");
    console.log("same connection");
    process.exit(0);
  }, 20);
  console.log("ready");
}
main().catch(fail);
