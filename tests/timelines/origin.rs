//! The servers behind: one for each protocol. Each takes turns with the client of the case.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use weir_proto::http2::frame::{self, FrameHead, FrameType};
use weir_proto::http2::hpack::{self, Decoder, FieldLimits};
use weir_testkit::{PATIENCE, fastcgi, listen};

use crate::PIECES;
use crate::case::{Buffering, Case, Framing, Out, Step, Way};

/// One request of a case: how far its two ends may go, and have gone.
pub struct Run {
    pub case: Case,
    /// What is asked for. It has the number by which the server behind finds the run.
    pub uri: String,
    steps: Mutex<Steps>,
    changed: Condvar,
}

#[derive(Default)]
struct Steps {
    /// So many steps of the server's the client has had, or waits for no longer.
    allowed: usize,
    /// So many of the client's have reached the server.
    arrived: usize,
}

impl Run {
    /// The server may go on behind its step `n`, counted from 1.
    pub fn allow(&self, n: usize) {
        self.change(|steps| steps.allowed = steps.allowed.max(n));
    }

    fn arrive(&self, n: usize) {
        self.change(|steps| steps.arrived = steps.arrived.max(n));
    }

    fn change(&self, change: impl FnOnce(&mut Steps)) {
        change(&mut self.steps.lock().unwrap());
        self.changed.notify_all();
    }

    /// Whether the client's `n`th step reaches the server in time.
    pub fn has_arrived(&self, n: usize, patience: Duration) -> bool {
        self.wait(patience, |steps| steps.arrived >= n)
    }

    fn wait(&self, patience: Duration, done: impl Fn(&Steps) -> bool) -> bool {
        let steps = self.steps.lock().unwrap();
        let waited = self.changed.wait_timeout_while(steps, patience, |steps| !done(steps));
        !waited.unwrap().1.timed_out()
    }

    /// Says the whole answer, each piece when it may.
    fn answer(&self, speech: &mut impl Speech) -> io::Result<()> {
        let mut out = Vec::new();
        if self.case.is_up() {
            speech.head(self, &mut out);
            speech.piece(b"taken", &mut out);
            speech.end(&mut out);
            return speech.say(&out);
        }
        let (pieces, mut has_head) = (self.pieces(), false);
        for (i, step) in self.case.steps().into_iter().enumerate() {
            match step {
                Step::Hints => speech.hints(&mut out),
                Step::Head => {
                    has_head = true;
                    speech.head(self, &mut out);
                }
                Step::Piece(n) => {
                    if !std::mem::replace(&mut has_head, true) {
                        speech.head(self, &mut out);
                    }
                    if self.case.way == Way::Turns {
                        self.wait(2 * PATIENCE, |steps| steps.arrived >= n + 2);
                    }
                    speech.piece(&pieces[n], &mut out);
                }
            }
            speech.say(&std::mem::take(&mut out))?;
            if self.case.way == Way::Down {
                self.wait(2 * PATIENCE, |steps| steps.allowed > i);
            }
        }
        speech.end(&mut out);
        speech.say(&out)
    }

    /// The pieces of the answer as the server sends them.
    fn pieces(&self) -> Vec<Vec<u8>> {
        let plain = (0..PIECES).map(|n| piece(n, self.case.size));
        if !self.case.is_coded() {
            return plain.collect();
        }
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        let mut code = |(n, plain): (usize, Vec<u8>)| {
            gzip.write_all(&plain).expect("memory takes all");
            match n + 1 == PIECES {
                true => gzip.try_finish().expect("memory takes all"),
                false => gzip.flush().expect("memory takes all"),
            }
            std::mem::take(gzip.get_mut())
        };
        plain.enumerate().map(&mut code).collect()
    }

    fn length(&self) -> usize {
        match self.case.is_up() {
            true => b"taken".len(),
            false => self.pieces().iter().map(Vec::len).sum(),
        }
    }

    /// Notes the pieces of the client's body in what has come of the request. True when it has all.
    fn look(&self, got: &[u8]) -> bool {
        let mut n = 0;
        while n < PIECES && holds(got, &mark(n)) {
            n += 1;
        }
        // The head of the request is the first step.
        self.arrive(n + 1);
        n == PIECES
    }
}

/// The last bytes of a piece.
pub fn mark(n: usize) -> Vec<u8> {
    format!("piece-{n};").into_bytes()
}

pub fn piece(n: usize, size: usize) -> Vec<u8> {
    let mark = mark(n);
    let mut piece = vec![b'.'; size - mark.len()];
    piece.extend_from_slice(&mark);
    piece
}

pub fn holds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// How an answer is said in a protocol.
trait Speech {
    /// An answer 103.
    fn hints(&mut self, _out: &mut Vec<u8>) {}
    fn head(&mut self, run: &Run, out: &mut Vec<u8>);
    fn piece(&mut self, text: &[u8], out: &mut Vec<u8>);
    fn end(&mut self, out: &mut Vec<u8>);
    fn say(&mut self, bytes: &[u8]) -> io::Result<()>;
}

type Runs = Arc<Mutex<HashMap<String, Arc<Run>>>>;

pub struct Origins {
    runs: Runs,
    http1: u16,
    http2: u16,
    fastcgi: u16,
    uwsgi: u16,
    scgi: u16,
    memcached: u16,
    stream: u16,
}

impl Origins {
    pub fn start() -> Origins {
        let runs = Runs::default();
        let serve = |serve: fn(&Runs, TcpStream) -> io::Result<()>| {
            let runs = runs.clone();
            listen(move |stream| {
                let _ = stream.set_nodelay(true);
                let _ = stream.set_read_timeout(Some(2 * PATIENCE));
                // The other end may close whenever it likes.
                let _ = serve(&runs, stream);
            })
        };
        Origins {
            http1: serve(http1),
            http2: serve(http2),
            fastcgi: serve(records),
            uwsgi: serve(plain),
            scgi: serve(plain),
            memcached: serve(memcached),
            stream: serve(tunnel),
            runs,
        }
    }

    pub fn port(&self, out: Out) -> u16 {
        match out {
            Out::Proxy10 | Out::Proxy11 => self.http1,
            Out::Proxy2 | Out::Grpc => self.http2,
            Out::Fastcgi => self.fastcgi,
            Out::Uwsgi => self.uwsgi,
            Out::Scgi => self.scgi,
            Out::Memcached => self.memcached,
            Out::Connect | Out::Stream => self.stream,
        }
    }

    /// A new request of case `n`.
    pub fn begin(&self, n: usize, case: &Case) -> Arc<Run> {
        let mut runs = self.runs.lock().unwrap();
        let token = runs.len().to_string();
        let run = Arc::new(Run {
            case: case.clone(),
            uri: format!("/{n}?run={token};"),
            steps: Mutex::default(),
            changed: Condvar::new(),
        });
        runs.insert(token, run.clone());
        run
    }
}

/// The request that names itself somewhere in these bytes, with `run=NUMBER;`.
fn find(runs: &Runs, got: &[u8]) -> Option<Arc<Run>> {
    let at = got.windows(4).position(|window| window == b"run=")? + 4;
    let rest = &got[at..];
    let end = rest.iter().position(|byte| *byte == b';')?;
    let token = String::from_utf8_lossy(&rest[..end]);
    runs.lock().unwrap().get(token.as_ref()).cloned()
}

/// Reads until `done`; fails at the end of the connection.
fn read_until(
    stream: &mut TcpStream,
    got: &mut Vec<u8>,
    mut done: impl FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    let end = Instant::now() + 2 * PATIENCE;
    while !done(got) {
        let mut buf = [0; 16 * 1024];
        let n = stream.read(&mut buf)?;
        if n == 0 || Instant::now() > end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        got.extend_from_slice(&buf[..n]);
    }
    Ok(())
}

/// Ends without a reset: what is on its way to here is read.
fn close(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let mut buf = [0; 4096];
    while stream.read(&mut buf)? > 0 {}
    Ok(())
}

/// Takes the request as far as the answer needs.
fn request(runs: &Runs, stream: &mut TcpStream) -> io::Result<Arc<Run>> {
    let mut got = Vec::new();
    let mut run = None;
    read_until(stream, &mut got, |got| {
        run = run.take().or_else(|| find(runs, got));
        let Some(run) = &run else { return false };
        !run.case.is_up() || run.look(got)
    })?;
    run.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// HTTP/1, and answers of uwsgi and SCGI.
struct Text {
    stream: TcpStream,
    chunked: bool,
    status: &'static str,
}

impl Speech for Text {
    fn hints(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    }

    fn head(&mut self, run: &Run, out: &mut Vec<u8>) {
        self.chunked = run.case.framing == Framing::Pieces;
        out.extend_from_slice(self.status.as_bytes());
        out.extend_from_slice(fields(run).as_bytes());
        if self.chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if self.status.starts_with("HTTP") {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    fn piece(&mut self, text: &[u8], out: &mut Vec<u8>) {
        if self.chunked {
            out.extend_from_slice(format!("{:x}\r\n", text.len()).as_bytes());
        }
        out.extend_from_slice(text);
        if self.chunked {
            out.extend_from_slice(b"\r\n");
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.chunked {
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }
}

/// Fields that all protocols have.
fn fields(run: &Run) -> String {
    let mut fields = "Content-Type: text/html\r\n".to_owned();
    if run.case.framing == Framing::Length {
        fields += &format!("Content-Length: {}\r\n", run.length());
    }
    if run.case.buffering == Buffering::ByServer {
        fields += "X-Accel-Buffering: no\r\n";
    }
    if run.case.is_coded() {
        fields += "Content-Encoding: gzip\r\n";
    }
    fields
}

fn http1(runs: &Runs, mut stream: TcpStream) -> io::Result<()> {
    let run = request(runs, &mut stream)?;
    if run.case.way == Way::Tunnel {
        let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        return talk(&run, stream, head);
    }
    let mut text = Text { stream, chunked: false, status: "HTTP/1.1 200 OK\r\n" };
    run.answer(&mut text)?;
    close(text.stream)
}

fn plain(runs: &Runs, mut stream: TcpStream) -> io::Result<()> {
    let run = request(runs, &mut stream)?;
    let mut text = Text { stream, chunked: false, status: "Status: 200 OK\r\n" };
    run.answer(&mut text)?;
    close(text.stream)
}

fn tunnel(runs: &Runs, mut stream: TcpStream) -> io::Result<()> {
    let run = request(runs, &mut stream)?;
    talk(&run, stream, b"")
}

/// Both directions by turns: each piece is answered by one.
fn talk(run: &Run, mut stream: TcpStream, head: &[u8]) -> io::Result<()> {
    let mut out = head.to_vec();
    if run.case.head_alone {
        stream.write_all(&std::mem::take(&mut out))?;
        run.wait(2 * PATIENCE, |steps| steps.allowed >= 1);
    }
    let mut got = Vec::new();
    for n in 0..PIECES {
        out.extend_from_slice(&piece(n, run.case.size));
        stream.write_all(&std::mem::take(&mut out))?;
        read_until(&mut stream, &mut got, |got| holds(got, &mark(n)))?;
    }
    close(stream)
}

/// memcached.
struct Value(TcpStream);

impl Speech for Value {
    fn head(&mut self, run: &Run, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("VALUE {} 0 {}\r\n", run.uri, run.length()).as_bytes());
    }

    fn piece(&mut self, text: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(text);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\nEND\r\n");
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

fn memcached(runs: &Runs, mut stream: TcpStream) -> io::Result<()> {
    let run = request(runs, &mut stream)?;
    let mut value = Value(stream);
    run.answer(&mut value)?;
    close(value.0)
}

/// FastCGI.
struct Records(TcpStream);

impl Speech for Records {
    fn head(&mut self, run: &Run, out: &mut Vec<u8>) {
        let head = format!("{}\r\n", fields(run));
        out.extend_from_slice(&fastcgi::record(fastcgi::STDOUT, head.as_bytes(), 0));
    }

    fn piece(&mut self, text: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&fastcgi::record(fastcgi::STDOUT, text, 0));
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&fastcgi::record(fastcgi::STDOUT, b"", 0));
        out.extend_from_slice(&fastcgi::record(fastcgi::END, &[0; 8], 0));
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

fn records(runs: &Runs, mut stream: TcpStream) -> io::Result<()> {
    let run = request(runs, &mut stream)?;
    let mut records = Records(stream);
    run.answer(&mut records)?;
    close(records.0)
}

/// A stream of HTTP/2.
struct Frames {
    stream: Arc<Mutex<TcpStream>>,
    id: u32,
}

impl Speech for Frames {
    fn hints(&mut self, out: &mut Vec<u8>) {
        let begin = frame::leave_head(out);
        hpack::field(b":status", b"103", out);
        hpack::field(b"link", b"</a>", out);
        frame::finish_headers(out, begin, self.id, 0, frame::MAX_PAYLOAD);
    }

    fn head(&mut self, run: &Run, out: &mut Vec<u8>) {
        let length = run.length().to_string();
        let begin = frame::leave_head(out);
        let kind = if run.case.out == Out::Grpc { "application/grpc" } else { "text/html" };
        hpack::field(b":status", b"200", out);
        hpack::field(b"content-type", kind.as_bytes(), out);
        if run.case.framing == Framing::Length {
            hpack::field(b"content-length", length.as_bytes(), out);
        }
        if run.case.buffering == Buffering::ByServer {
            hpack::field(b"x-accel-buffering", b"no", out);
        }
        if run.case.is_coded() {
            hpack::field(b"content-encoding", b"gzip", out);
        }
        frame::finish_headers(out, begin, self.id, 0, frame::MAX_PAYLOAD);
    }

    fn piece(&mut self, text: &[u8], out: &mut Vec<u8>) {
        FrameHead { len: text.len(), kind: FrameType::Data, flags: 0, stream: self.id }.write(out);
        out.extend_from_slice(text);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        let flags = frame::END_STREAM;
        FrameHead { len: 0, kind: FrameType::Data, flags, stream: self.id }.write(out);
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.lock().unwrap().write_all(bytes)
    }
}

/// Streams of one connection, each answered by a thread of its own.
fn http2(runs: &Runs, mut reads: TcpStream) -> io::Result<()> {
    let writes = Arc::new(Mutex::new(reads.try_clone()?));
    let mut preface = [0; frame::PREFACE.len()];
    reads.read_exact(&mut preface)?;
    let mut out = Vec::new();
    frame::write_settings(&[], &mut out);
    frame::write_window_update(0, 1 << 30, &mut out);
    writes.lock().unwrap().write_all(&out)?;
    let mut decoder = Decoder::default();
    let mut bodies: HashMap<u32, (Arc<Run>, Vec<u8>)> = HashMap::new();
    loop {
        let (head, payload) = next_frame(&mut reads)?;
        let id = head.stream;
        match head.kind {
            FrameType::Settings if !head.has(frame::ACK) => {
                let mut out = Vec::new();
                frame::write_settings_ack(&mut out);
                writes.lock().unwrap().write_all(&out)?;
            }
            FrameType::Headers => {
                let mut name = Vec::new();
                let limits = FieldLimits { field: 1 << 16, block: 1 << 18 };
                let found = |n: &[u8], v: &[u8]| {
                    if n == b"x-run" {
                        name = v.to_vec();
                    }
                };
                decoder.decode(&payload, limits, found).map_err(|_| io::ErrorKind::InvalidData)?;
                let Some(run) = find(runs, &name) else { continue };
                if run.case.has_body() {
                    run.arrive(1);
                    bodies.insert(id, (run.clone(), Vec::new()));
                }
                if !run.case.is_up() {
                    respond(run, Frames { stream: writes.clone(), id });
                }
            }
            FrameType::Data => {
                let Some((run, got)) = bodies.get_mut(&id) else { continue };
                got.extend_from_slice(&payload);
                if run.look(got)
                    && head.has(frame::END_STREAM)
                    && let Some((run, _)) = bodies.remove(&id)
                    && run.case.is_up()
                {
                    respond(run, Frames { stream: writes.clone(), id });
                }
            }
            _ => {}
        }
    }
}

fn respond(run: Arc<Run>, mut frames: Frames) {
    thread::spawn(move || run.answer(&mut frames));
}

pub fn next_frame(stream: &mut (impl Read + ?Sized)) -> io::Result<(FrameHead, Vec<u8>)> {
    let mut head = [0; frame::HEAD];
    stream.read_exact(&mut head)?;
    let head = FrameHead::read(&head).ok_or(io::ErrorKind::InvalidData)?;
    let mut payload = vec![0; head.len];
    stream.read_exact(&mut payload)?;
    Ok((head, payload))
}
