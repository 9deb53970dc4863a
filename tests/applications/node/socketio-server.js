// Echoes what comes, and says which connection it came over.
const http = require("http");
const { Server } = require("socket.io");

const server = http.createServer();
const io = new Server(server, { maxHttpBufferSize: 1e7 });
io.on("connection", (socket) => {
  socket.on("echo", (data, reply) => reply(socket.id, socket.conn.transport.name, data));
});
server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening"));
