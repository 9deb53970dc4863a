//! HTTP/1 messages, parsed byte by byte: answers for clients, requests for servers.

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Length(u64),
    /// The bytes that are left of a chunk, and the state between chunks.
    Chunk(u64),
    Between,
    Trailers,
    Close,
}

/// A message that is being parsed.
#[derive(Debug, Default)]
pub struct Message {
    head: Vec<u8>,
    line: Vec<u8>,
    frame: Option<Frame>,
    pub lines: Vec<String>,
    /// The number of body bytes so far.
    pub seen: u64,
    pub done: bool,
    pub broken: Option<String>,
}

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Request,
    Answer { to_head: bool },
}

impl Message {
    pub fn begun(&self) -> bool {
        !self.head.is_empty() || !self.lines.is_empty()
    }

    pub fn has_head(&self) -> bool {
        self.frame.is_some() || self.done
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.lines.iter().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    pub fn status(&self) -> u16 {
        let words = self.lines.first().and_then(|line| line.split(' ').nth(1));
        words.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    pub fn path(&self) -> &str {
        self.lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("")
    }

    /// Parses `bytes`. Returns how many of them belong to this message, and the part that is body.
    pub fn feed<'a>(&mut self, bytes: &'a [u8], side: Side) -> (usize, &'a [u8]) {
        let mut at = 0;
        while !self.has_head() && at < bytes.len() {
            self.head.push(bytes[at]);
            at += 1;
            if self.head.ends_with(b"\r\n\r\n") {
                self.understand(side);
            } else if self.head.len() > 100_000 {
                self.fail("a head without end");
            }
        }
        let mut body = &bytes[at..at];
        while at < bytes.len() && !self.done && body.is_empty() {
            let left = &bytes[at..];
            match self.frame {
                Some(Frame::Length(n) | Frame::Chunk(n)) => {
                    let take = left.len().min(usize::try_from(n).unwrap_or(usize::MAX));
                    body = &left[..take];
                    at += take;
                    let rest = n - take as u64;
                    let chunked = matches!(self.frame, Some(Frame::Chunk(_)));
                    self.frame = Some(match (chunked, rest) {
                        (true, 0) => Frame::Between,
                        (true, n) => Frame::Chunk(n),
                        (false, n) => Frame::Length(n),
                    });
                    self.done = self.frame == Some(Frame::Length(0));
                }
                Some(Frame::Close) => {
                    body = left;
                    at = bytes.len();
                }
                Some(Frame::Between | Frame::Trailers) => {
                    self.line.push(left[0]);
                    at += 1;
                    if left[0] == b'\n' {
                        self.end_of_line();
                    }
                }
                None => break,
            }
        }
        self.seen += body.len() as u64;
        (at, body)
    }

    fn end_of_line(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        let Some(text) = line.strip_suffix("\r\n") else { return self.fail("a chunk's line") };
        match self.frame {
            Some(Frame::Trailers) => self.done = text.is_empty(),
            // The line end after a chunk's data.
            _ if text.is_empty() && self.seen > 0 => {}
            _ => match u64::from_str_radix(text.split(';').next().unwrap_or(""), 16) {
                Ok(0) => self.frame = Some(Frame::Trailers),
                Ok(n) => self.frame = Some(Frame::Chunk(n)),
                Err(_) => self.fail(&format!("a chunk's length {text:?}")),
            },
        }
    }

    fn fail(&mut self, why: &str) {
        self.broken = Some(why.to_owned());
        self.done = true;
    }

    fn understand(&mut self, side: Side) {
        let head = String::from_utf8_lossy(&std::mem::take(&mut self.head)).into_owned();
        self.lines = head.split("\r\n").filter(|line| !line.is_empty()).map(Into::into).collect();
        let first = self.lines.first().cloned().unwrap_or_default();
        let sound = match side {
            Side::Answer { .. } => first.starts_with("HTTP/1.") && self.status() >= 100,
            Side::Request => first.ends_with(" HTTP/1.1") || first.ends_with(" HTTP/1.0"),
        };
        if !sound {
            return self.fail(&format!("a first line {first:?}"));
        }
        let status = self.status();
        if matches!(side, Side::Answer { .. }) && (100..200).contains(&status) {
            self.lines.clear();
            return;
        }
        let empty = side == (Side::Answer { to_head: true }) || matches!(status, 204 | 304);
        let chunked = self.field("transfer-encoding").is_some_and(|v| v.contains("chunked"));
        let frame = match self.number("content-length") {
            _ if empty => Frame::Length(0),
            _ if chunked => Frame::Between,
            Some(n) => Frame::Length(n),
            None if side == Side::Request => Frame::Length(0),
            None => Frame::Close,
        };
        self.done = frame == Frame::Length(0);
        self.frame = Some(frame);
    }

    /// Handles the end of the connection. Returns whether the message is complete.
    pub fn end(&mut self) -> bool {
        self.done |= self.frame == Some(Frame::Close);
        self.done && self.broken.is_none()
    }

    /// Whether the end of the connection ends the message.
    pub fn ends_with_connection(&self) -> bool {
        self.frame == Some(Frame::Close)
    }
}
