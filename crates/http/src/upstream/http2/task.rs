//! A connection's task: reads frames, sends output, and ends the connection.

use std::io;
use std::rc::{Rc, Weak};

use weir_engine::breathe;
use weir_http2::{ConnectionError, Frames, Pipe, ReaderHistory};
use weir_proto::http2::frame::{self, ErrorCode};
use weir_proto::http2::hpack::Decoder;
use weir_upstream::{Failure, Limits};

use super::ending::Ending;
use super::link::Link;
use super::links::Links;
use super::reader::ServerFrameReader;

/// Starts the task of a connection. `links` has the connection.
pub fn start(link: &Rc<Link>, links: Option<&Rc<Links>>, limits: Limits) {
    let _ = link.connection.stream.socket().nodelay(true);
    // No dynamic table: it would save the server bytes, but cost memory for each connection.
    let seen = ReaderHistory::nothing(Decoder::with_table(0));
    let task = Task {
        link: link.clone(),
        links: links.map(Rc::downgrade),
        limits,
        frames: Frames::new(ServerFrameReader::new(link.clone()), seen),
        pipe: Pipe::default(),
        deaf: false,
    };
    link.handle().spawn(task.run());
}

struct Task {
    link: Rc<Link>,
    links: Option<Weak<Links>>,
    limits: Limits,
    frames: Frames<ServerFrameReader>,
    pipe: Pipe,
    /// The server accepts nothing more. Data that it sent before must still be read.
    deaf: bool,
}

/// How a connection ends.
enum LinkEnd {
    /// It was idle for too long, or reached its limits.
    Done,
    /// The server broke the protocol.
    ConnectionError(ConnectionError),
    /// The socket failed, or the server closed it.
    Lost(Ending),
}

impl From<ConnectionError> for LinkEnd {
    fn from(broken: ConnectionError) -> LinkEnd {
        LinkEnd::ConnectionError(broken)
    }
}

impl From<io::Error> for LinkEnd {
    fn from(error: io::Error) -> LinkEnd {
        LinkEnd::Lost(error.into())
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
            LinkEnd::Done => Some(ErrorCode::NoError),
            LinkEnd::ConnectionError(broken) => Some(broken.code),
            LinkEnd::Lost(_) => None,
        };
        if let Some(code) = code {
            self.link.write(|out| frame::write_goaway(0, code, out));
            let _ = self.pipe.flush(&self.link, &self.link.connection.stream);
        }
        if let Some(links) = self.links.as_ref().and_then(Weak::upgrade) {
            links.remove(&self.link);
        }
        let (why, of) = match end {
            LinkEnd::ConnectionError(broken) => (Ending::invalid(broken.text), broken.stream),
            LinkEnd::Lost(ending) => (ending, None),
            LinkEnd::Done => (closed(), None),
        };
        self.link.fail(&why, of);
    }

    /// Sends output.
    fn flush(&mut self) -> io::Result<()> {
        let link = &self.link;
        if !self.deaf {
            match self.pipe.flush(link, &link.connection.stream) {
                Err(error) if has_closed(&error) => {
                    self.deaf = true;
                    link.leave();
                }
                Ok(true) => {
                    self.frames.end.is_of_use();
                    return Ok(());
                }
                done => return done.map(drop),
            }
        }
        self.pipe.drop_output(link);
        Ok(())
    }

    /// Handles the data that were read, sends output, and waits for more.
    async fn turn(&mut self) -> Result<(), LinkEnd> {
        self.pipe.parse(&mut self.frames)?;
        self.flush()?;
        let link = &self.link;
        let (handle, wire) = (link.handle(), &link.connection.stream);
        if self.frames.has_backlog() {
            breathe().await;
            return Ok(());
        }
        let idle = link.idle_since();
        if let Some(since) = idle {
            if link.is_spent(&self.limits, handle.now()) {
                return Err(LinkEnd::Done);
            }
            wire.set_deadline(Some(since + self.limits.timeout));
            if let Some(links) = self.links.as_ref().and_then(Weak::upgrade) {
                links.trim(self.limits.idle);
            }
            self.pipe.release_buffer(handle);
        } else {
            // Each stream has its own deadline.
            wire.set_deadline(None);
        }
        match self.pipe.wait(link, wire).await {
            Ok(true) if self.pipe.receive(handle, wire)? => Ok(()),
            Ok(true) => Err(LinkEnd::Lost(closed())),
            Ok(false) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut && idle.is_some() => {
                Err(LinkEnd::Done)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn has_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn closed() -> Ending {
    let text = "upstream prematurely closed connection";
    Ending::Said(text.to_owned(), Failure::Error)
}
