//! Writes the head of an answer. The fields and their order are the same for each version of HTTP. The encoding of a field
//! is not.

use crate::answer::headers::{Line, Place};
use crate::answer::output::write_number;
use crate::answer::response::reason;
use crate::escape::{OwnTexts, within_line};
use crate::request::Request;

/// Writes fields one after another.
pub trait Fields {
    /// Whether the head has connection-specific fields.
    const OF_CONNECTION: bool;

    /// Writes a field. `write` appends its value.
    fn own(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>));

    /// See [`within_line`].
    fn own_texts(&self) -> &'static OwnTexts;

    /// Writes a field with a foreign value. Bytes that would end the line are replaced.
    #[inline]
    fn field(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let texts = self.own_texts();
        self.own(name, |out| {
            let start = out.len();
            write(out);
            within_line(out, start, texts);
        });
    }
}

impl Request {
    /// The fields of the answer, in their order.
    pub fn write_fields<F: Fields>(&self, out: &mut F) {
        let response = &self.response;
        let is_placed = |place| response.headers.has(place);
        if !is_placed(Place::Server) {
            self.write_server(b"Server", out);
        }
        if !is_placed(Place::Date) {
            self.write_date(b"Date", out);
        }
        if !response.content_type.is_empty() {
            out.field(b"Content-Type", |out| response.write_content_type(out));
        }
        if let Some(length) = response.content_length {
            out.own(b"Content-Length", |out| write_number(length, out));
        }
        if let Some(time) = response.last_modified.filter(|_| !response.has_last_modified_line) {
            let date = weir_proto::date::imf_fixdate(time);
            out.own(b"Last-Modified", |out| out.extend_from_slice(&date));
        }
        // As in nginx, a path that becomes a URL of this server is written early, and any other value among the rest.
        let own = self.own_location();
        if let Some(location) = own {
            out.field(b"Location", |out| self.write_location(location, out));
        }
        if response.chunked {
            out.own(b"Transfer-Encoding", |out| out.extend_from_slice(b"chunked"));
        }
        if F::OF_CONNECTION {
            self.write_connection(out);
        }
        if response.varies_by_encoding && self.conf().core.gzip_vary {
            out.own(b"Vary", |out| out.extend_from_slice(b"Accept-Encoding"));
        }
        // If there is an own `Location`, it is written above.
        let other = response.location.as_deref().filter(|_| own.is_none());
        if let Some(location) = other.filter(|_| !is_placed(Place::Location)) {
            out.field(b"Location", |out| out.extend_from_slice(location));
        }
        if let Some(etag) = response.etag.as_deref().filter(|_| !is_placed(Place::ETag)) {
            out.field(b"ETag", |out| out.extend_from_slice(etag));
        }
        let coding = response.content_encoding.as_deref();
        if let Some(coding) = coding.filter(|_| !is_placed(Place::ContentEncoding)) {
            out.field(b"Content-Encoding", |out| out.extend_from_slice(coding));
        }
        for line in response.headers.with_places() {
            match line {
                Line::Whole(name, value) => {
                    out.field(name, |out| out.extend_from_slice(value));
                }
                Line::Placed(place, name) => self.write_placed(place, name, out),
            }
        }
    }

    fn write_server<F: Fields>(&self, name: &[u8], out: &mut F) {
        match self.response.server.as_deref() {
            None => out.own(name, |out| {
                out.extend_from_slice(self.conf().core.server_tokens.signature());
            }),
            Some(b"") => {}
            Some(server) => out.field(name, |out| out.extend_from_slice(server)),
        }
    }

    fn write_date<F: Fields>(&self, name: &[u8], out: &mut F) {
        match self.response.date.as_deref() {
            None => out.own(name, |out| self.event_loop.write_date(out)),
            Some(b"") => {}
            Some(date) => out.field(name, |out| out.extend_from_slice(date)),
        }
    }

    /// Writes the line with this place among a server's lines, by the server's spelling of its name, if the answer still has it.
    fn write_placed<F: Fields>(&self, place: Place, name: &[u8], out: &mut F) {
        let response = &self.response;
        let value = match place {
            Place::Server => return self.write_server(name, out),
            Place::Date => return self.write_date(name, out),
            Place::Location if self.own_location().is_some() => return,
            Place::Location => response.location.as_deref(),
            Place::ETag => response.etag.as_deref(),
            Place::ContentEncoding => response.content_encoding.as_deref(),
        };
        if let Some(value) = value {
            out.field(name, |out| out.extend_from_slice(value));
        }
    }

    fn write_connection(&self, out: &mut impl Fields) {
        let value: &[u8] = match (self.response.status, self.keepalive) {
            (101, _) => b"upgrade",
            (_, false) => b"close",
            (_, true) => b"keep-alive",
        };
        out.own(b"Connection", |out| out.extend_from_slice(value));
        let seconds = self.conf().core.keepalive_header;
        if let Some(seconds) = seconds.filter(|_| value == b"keep-alive") {
            out.own(b"Keep-Alive", |out| {
                out.extend_from_slice(b"timeout=");
                write_number(seconds, out);
            });
        }
    }

    /// The path of a `Location`, if it becomes a URL of this server.
    fn own_location(&self) -> Option<&[u8]> {
        let location = self.response.location.as_deref();
        location.filter(|l| l.starts_with(b"/") && self.conf().core.absolute_redirect)
    }

    /// Appends the URL that was sent for a path in `Location`. Returns false if there was none.
    pub fn sent_location(&self, out: &mut Vec<u8>) -> bool {
        let path = self.own_location().filter(|_| self.response.head_bytes > 0);
        path.inspect(|path| self.write_location(path, out)).is_some()
    }

    /// Writes a path as a URL of this server (`absolute_redirect`).
    fn write_location(&self, location: &[u8], out: &mut Vec<u8>) {
        let core = &self.conf().core;
        let secure = self.conn.is_tls();
        out.extend_from_slice(if secure { b"https://" } else { b"http://" });
        if core.server_name_in_redirect {
            out.extend_from_slice(self.server.name().as_bytes());
        } else if self.host.is_empty() {
            out.extend_from_slice(self.conn.local().host().as_bytes());
        } else {
            out.extend_from_slice(&self.host);
        }
        if core.port_in_redirect
            && let Some(port) =
                self.conn.local().port().filter(|p| *p != if secure { 443 } else { 80 })
        {
            out.push(b':');
            write_number(u64::from(port), out);
        }
        out.extend_from_slice(location);
    }
}

/// Writes the status and its reason phrase, as in the status line.
pub fn write_status(status: u16, out: &mut Vec<u8>) {
    if status < 100 {
        out.extend_from_slice(if status < 10 { b"00" } else { b"0" });
    }
    write_number(u64::from(status), out);
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
}
