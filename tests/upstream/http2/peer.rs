//! A server that speaks HTTP/2 frame by frame, as a test tells it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack::{self, Decoder, FieldLimits};
use weir_testkit::PATIENCE;

/// A server, and how many connections were opened to it.
pub struct Peer {
    pub port: u16,
    opened: Arc<AtomicUsize>,
}

impl Peer {
    /// Runs `script` for each connection, with the connection's number from 1 on.
    pub fn new(script: impl Fn(usize, &mut Talk) -> Option<()> + Send + Sync + 'static) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (script, opened) = (Arc::new(script), Arc::new(AtomicUsize::new(0)));
        let counted = opened.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (script, number) = (script.clone(), counted.fetch_add(1, Ordering::SeqCst) + 1);
                let stream = stream.unwrap();
                thread::spawn(move || {
                    let mut talk = Talk::new(stream)?;
                    script(number, &mut talk)?;
                    // What the other end has not read yet must not be lost.
                    while talk.next().is_some() {}
                    Some(())
                });
            }
        });
        Peer { port, opened }
    }

    /// Answers each request with what `answer` makes of its path.
    pub fn answering(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Peer {
        Peer::new(move |_, talk| {
            talk.settings(&[]);
            loop {
                let head = talk.head()?;
                talk.answer(head.id, &answer(head.field(":path")));
            }
        })
    }

    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

/// A connection.
pub struct Talk {
    stream: TcpStream,
    decoder: Decoder,
    /// What is written together.
    held: Option<Vec<u8>>,
    /// The window that the other end gives to new streams.
    pub window: u32,
}

/// A request's head.
#[derive(Debug, PartialEq)]
pub struct Head {
    pub id: u32,
    pub fields: Vec<(String, String)>,
    pub ended: bool,
}

impl Head {
    pub fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
    }
}

/// What came.
#[derive(Debug, PartialEq)]
pub enum Event {
    Head(Head),
    Data(u32, Vec<u8>, bool),
    Reset(u32, u32),
    Window(u32, u32),
    Goaway(u32),
    Pong,
    Other,
}

impl Talk {
    fn new(mut stream: TcpStream) -> Option<Talk> {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).ok()?;
        assert_eq!(&preface, frame::PREFACE);
        Some(Talk::over(stream))
    }

    fn over(stream: TcpStream) -> Talk {
        Talk { stream, decoder: Decoder::default(), held: None, window: frame::DEFAULT_WINDOW }
    }

    /// The other end: a client.
    pub fn client(port: u16) -> Talk {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut talk = Talk::over(stream);
        talk.write(|out| {
            out.extend_from_slice(frame::PREFACE);
            frame::write_settings(&[], out);
        });
        talk
    }

    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(held) = &mut self.held {
            return write(held);
        }
        let mut out = Vec::new();
        write(&mut out);
        let _ = self.stream.write_all(&out);
    }

    /// Writes what `say` says at once, so that it is read at once.
    pub fn at_once(&mut self, say: impl FnOnce(&mut Talk)) {
        self.held = Some(Vec::new());
        say(self);
        let held = self.held.take().unwrap_or_default();
        self.write(|out| *out = held);
    }

    pub fn settings(&mut self, settings: &[Setting]) {
        self.write(|out| frame::write_settings(settings, out));
    }

    /// The next frame; none when the connection is closed.
    pub fn next(&mut self) -> Option<Event> {
        let mut head = [0; frame::HEAD];
        self.stream.read_exact(&mut head).ok()?;
        let head = FrameHead::read(&head)?;
        let mut payload = vec![0; head.len];
        self.stream.read_exact(&mut payload).ok()?;
        let word = |at: usize| frame::word(&payload[at..at + 4]).unwrap();
        Some(match head.kind {
            FrameType::Headers => {
                let mut fields = Vec::new();
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let limits = FieldLimits { field: 1 << 16, block: 1 << 18 };
                let take = |n: &[u8], v: &[u8]| fields.push((text(n), text(v)));
                self.decoder.decode(&payload, limits, take).unwrap();
                let ended = head.has(frame::END_STREAM);
                Event::Head(Head { id: head.stream, fields, ended })
            }
            FrameType::Data => Event::Data(head.stream, payload, head.has(frame::END_STREAM)),
            FrameType::RstStream => Event::Reset(head.stream, word(0)),
            FrameType::WindowUpdate => Event::Window(head.stream, word(0)),
            FrameType::Goaway => Event::Goaway(word(4)),
            FrameType::Ping if head.has(frame::ACK) => Event::Pong,
            FrameType::Settings => {
                for setting in frame::settings(&payload) {
                    if let Setting::InitialWindowSize(window) = setting {
                        self.window = window;
                    }
                }
                Event::Other
            }
            _ => Event::Other,
        })
    }

    /// Waits until something has come, and does not read it.
    pub fn wait(&mut self) -> Option<()> {
        self.stream.peek(&mut [0]).ok().filter(|n| *n > 0).map(drop)
    }

    /// The next request.
    pub fn head(&mut self) -> Option<Head> {
        loop {
            if let Event::Head(head) = self.next()? {
                return Some(head);
            }
        }
    }

    /// Waits until a stream is reset, and says why it was.
    pub fn reset_of(&mut self, id: u32) -> Option<u32> {
        loop {
            match self.next()? {
                Event::Reset(stream, code) if stream == id => return Some(code),
                _ => {}
            }
        }
    }

    pub fn fields(&mut self, id: u32, fields: &[(&str, &str)], ended: bool) {
        self.write(|out| {
            let begin = frame::leave_head(out);
            for (name, value) in fields {
                hpack::field(name.as_bytes(), value.as_bytes(), out);
            }
            let flags = if ended { frame::END_STREAM } else { 0 };
            frame::finish_headers(out, begin, id, flags, frame::MAX_PAYLOAD);
        });
    }

    pub fn data(&mut self, id: u32, data: &[u8], ended: bool) {
        self.write(|out| {
            let flags = if ended { frame::END_STREAM } else { 0 };
            FrameHead { len: data.len(), kind: FrameType::Data, flags, stream: id }.write(out);
            out.extend_from_slice(data);
        });
    }

    /// A whole answer.
    pub fn answer(&mut self, id: u32, body: &str) {
        self.fields(id, &[(":status", "200")], false);
        self.data(id, body.as_bytes(), true);
    }

    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        self.write(|out| frame::write_reset(id, code, out));
    }

    pub fn goaway(&mut self, last: u32, code: ErrorCode) {
        self.write(|out| frame::write_goaway(last, code, out));
    }
}
