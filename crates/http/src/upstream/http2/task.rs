//! A connection's task: reads frames, sends what waits, and ends the connection.

use std::io;
use std::rc::{Rc, Weak};

use weir_engine::Chain;
use weir_proto::http2::frame::{self, ErrorCode};
use weir_upstream::{Failure, Limits};

use super::ending::{Broken, Ending};
use super::link::Link;
use super::links::Links;
use super::reader::Reader;

/// Room for one read: a whole frame of the largest size, and a little.
const READ: usize = 20 * 1024;

/// Starts the task of a connection; `links` are those that it is one of.
pub fn start(link: &Rc<Link>, links: Option<&Rc<Links>>, limits: Limits) {
    let _ = link.connection.stream.socket().nodelay(true);
    let task = Task {
        link: link.clone(),
        links: links.map(Rc::downgrade),
        limits,
        reader: Reader::new(link.clone()),
        buf: Vec::new(),
        sending: Chain::new(),
    };
    link.handle().spawn(task.run());
}

struct Task {
    link: Rc<Link>,
    links: Option<Weak<Links>>,
    limits: Limits,
    reader: Reader,
    /// Read, and not understood yet.
    buf: Vec<u8>,
    /// On its way.
    sending: Chain,
}

/// How a connection ends.
enum End {
    /// It was idle for long enough, or has served as long as it may.
    Done,
    /// The server broke the protocol.
    Broken(Broken),
    /// The socket failed, or the server closed it.
    Lost(Ending),
}

impl From<Broken> for End {
    fn from(broken: Broken) -> End {
        End::Broken(broken)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Lost(error.into())
    }
}

impl Task {
    async fn run(mut self) {
        let end = loop {
            if let Err(end) = self.turn().await {
                break end;
            }
        };
        let code = match &end {
            End::Done => Some(ErrorCode::NoError),
            End::Broken(broken) => Some(broken.code),
            End::Lost(_) => None,
        };
        if let Some(code) = code {
            self.link.write(|out| frame::write_goaway(0, code, out));
            let _ = self.flush();
        }
        if let Some(links) = self.links.as_ref().and_then(Weak::upgrade) {
            links.remove(&self.link);
        }
        let why = match end {
            End::Broken(broken) => Ending::invalid(broken.text),
            End::Lost(ending) => ending,
            End::Done => closed(),
        };
        self.link.fail(&why);
    }

    /// Understands what was read, sends what waits, and waits for more.
    async fn turn(&mut self) -> Result<(), End> {
        self.understand()?;
        self.flush()?;
        let link = self.link.clone();
        let idle = link.idle_since();
        if let Some(since) = idle {
            if link.is_spent(&self.limits, link.handle().now()) {
                return Err(End::Done);
            }
            link.connection.stream.set_deadline(Some(since + self.limits.timeout));
            if let Some(links) = self.links.as_ref().and_then(Weak::upgrade) {
                links.trim(self.limits.idle);
            }
            if self.buf.is_empty() {
                // Who waits needs no buffer.
                link.handle().give_buf(std::mem::take(&mut self.buf));
            }
        } else {
            // Each stream has its own.
            link.connection.stream.set_deadline(None);
        }
        match self.wait().await {
            Ok(true) => self.receive(),
            Ok(false) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut && idle.is_some() => {
                Err(End::Done)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn understand(&mut self) -> Result<(), Broken> {
        if self.buf.is_empty() {
            return Ok(());
        }
        let read = self.reader.read(&self.buf)?;
        if read == self.buf.len() {
            self.buf.clear();
        } else {
            self.buf.drain(..read);
        }
        Ok(())
    }

    /// Hands to the socket what waits, as far as it takes it.
    fn flush(&mut self) -> io::Result<()> {
        let link = &self.link;
        loop {
            if self.sending.is_empty() {
                let out = link.out.take();
                if out.is_empty() {
                    break;
                }
                self.sending.push(out);
            }
            link.connection.stream.try_send(&mut self.sending)?;
            if !self.sending.is_empty() {
                break;
            }
        }
        link.set_backlog(self.sending.len());
        Ok(())
    }

    /// Waits for something to read (true), or to do.
    async fn wait(&self) -> io::Result<bool> {
        let (out, stream) = (&self.link.out, &self.link.connection.stream);
        out.wait(!self.sending.is_empty(), stream.readable(), stream.writable()).await
    }

    fn receive(&mut self) -> Result<(), End> {
        if self.buf.capacity() == 0 {
            self.buf = self.link.handle().take_buf(READ);
        } else if self.buf.capacity() - self.buf.len() < READ / 2 {
            self.buf.reserve(READ);
        }
        match self.link.connection.stream.try_recv(&mut self.buf)? {
            Some(0) => Err(End::Lost(closed())),
            _ => Ok(()),
        }
    }
}

fn closed() -> Ending {
    let text = "upstream prematurely closed connection";
    Ending::Said(text.to_owned(), Failure::Error)
}
