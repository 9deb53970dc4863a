//! Parses the request line. It can resume at any byte. nginx: ngx_http_parse_request_line.

use super::error::HeadError;
use super::head::RequestHead;
use super::method::{Method, Version};
use crate::Span;

/// Parses one request line, and blank lines before it.
#[derive(Debug, Default)]
pub(super) struct LineParser {
    state: RequestLineState,
    /// Everything before this offset has been read.
    pub(super) pos: usize,
    /// Where the method begins.
    pub(super) start: usize,
    /// The beginning of the element that is being parsed: target, scheme or host.
    mark: usize,
    /// The beginning of the target's path (or of its `?`), or of a `/` that is used as its path.
    target: usize,
    /// The offset of the `?`, 0 if there is none. No request begins with `?`.
    query: usize,
    /// Offset of the `#`, 0 if there is none.
    fragment: usize,
    schema_end: usize,
    matched: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RequestLineState {
    #[default]
    Start,
    Method,
    BeforeTarget,
    Schema,
    SchemaSlash,
    SchemaSecondSlash,
    BeforeHost,
    HostStart,
    Host,
    HostLiteral,
    HostEnd,
    PortStart,
    Port,
    /// After a `/` of the path, where `.` and `/` need normalisation.
    AfterSlash,
    Path,
    /// After a byte that makes normalisation necessary, or after the path.
    Rest,
    AfterTarget,
    Protocol,
    MajorFirst,
    Major,
    MinorFirst,
    Minor,
    AfterVersion,
    AlmostDone,
    Done,
}

impl LineParser {
    /// Whether nothing but blank lines has been read.
    pub(super) fn blank(&self) -> bool {
        self.state == RequestLineState::Start
    }

    /// Parses the next bytes. `true` once the line is complete and `head` describes it.
    #[inline]
    pub(super) fn parse(&mut self, buf: &[u8], head: &mut RequestHead) -> Result<bool, HeadError> {
        while let Some(&ch) = buf.get(self.pos) {
            match self.state {
                RequestLineState::Start | RequestLineState::Method => self.method(buf, ch, head)?,
                RequestLineState::BeforeTarget => self.before_target(ch)?,
                RequestLineState::AfterSlash | RequestLineState::Path | RequestLineState::Rest => {
                    self.path(buf, head)?
                }
                RequestLineState::AfterTarget => self.after_target(buf, ch, head)?,
                RequestLineState::Protocol
                | RequestLineState::MajorFirst
                | RequestLineState::Major
                | RequestLineState::MinorFirst
                | RequestLineState::Minor
                | RequestLineState::AfterVersion
                | RequestLineState::AlmostDone => self.version(ch, head)?,
                RequestLineState::Done => break,
                _ => self.authority(ch, head)?,
            }
            if self.state == RequestLineState::Done {
                return if head.version == Version::Http09 && head.method != Method::Get {
                    Err(HeadError::InvalidMethod09)
                } else {
                    Ok(true)
                };
            }
        }
        Ok(false)
    }

    #[inline]
    fn method(&mut self, buf: &[u8], ch: u8, head: &mut RequestHead) -> Result<(), HeadError> {
        if self.state == RequestLineState::Start {
            self.start = self.pos;
            if ch == b'\r' || ch == b'\n' {
                self.pos += 1;
                return Ok(());
            }
        }
        let rest = buf.get(self.pos..).unwrap_or_default();
        if self.state == RequestLineState::Start && rest.starts_with(b"GET ") {
            self.pos += 4;
            head.method_name = Span::new(self.start, self.start + 3);
            head.method = Method::Get;
            self.state = RequestLineState::BeforeTarget;
            return Ok(());
        }
        self.other_method(rest, buf, head)
    }

    fn other_method(
        &mut self,
        rest: &[u8],
        buf: &[u8],
        head: &mut RequestHead,
    ) -> Result<(), HeadError> {
        self.state = RequestLineState::Method;
        let len = rest.iter().take_while(|&&b| is_method_byte(b)).count();
        self.pos += len;
        match rest.get(len) {
            None => return Ok(()),
            Some(b' ') if self.pos > self.start => {}
            Some(_) => return Err(HeadError::InvalidMethod),
        }
        head.method_name = Span::new(self.start, self.pos);
        head.method = Method::from_name(head.method_name.of(buf));
        self.state = match head.method {
            Method::Connect => RequestLineState::BeforeHost,
            _ => RequestLineState::BeforeTarget,
        };
        self.pos += 1;
        Ok(())
    }

    #[inline]
    fn before_target(&mut self, ch: u8) -> Result<(), HeadError> {
        match ch {
            b'/' => {
                self.target = self.pos;
                self.state = RequestLineState::AfterSlash;
            }
            b'a'..=b'z' | b'A'..=b'Z' => {
                self.mark = self.pos;
                self.state = RequestLineState::Schema;
            }
            b' ' => {}
            _ => return Err(HeadError::InvalidRequest),
        }
        self.pos += 1;
        Ok(())
    }

    /// Parses scheme, host and port of an absolute-form or CONNECT target.
    fn authority(&mut self, ch: u8, head: &mut RequestHead) -> Result<(), HeadError> {
        match (self.state, ch) {
            (
                RequestLineState::Schema,
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'+' | b'-' | b'.',
            ) => {}
            (RequestLineState::Schema, b':') => {
                head.schema = Some(Span::new(self.mark, self.pos));
                self.schema_end = self.pos;
                self.state = RequestLineState::SchemaSlash;
            }
            (RequestLineState::SchemaSlash, b'/') => {
                self.state = RequestLineState::SchemaSecondSlash
            }
            (RequestLineState::SchemaSecondSlash, b'/') => self.state = RequestLineState::HostStart,
            (
                RequestLineState::Schema
                | RequestLineState::SchemaSlash
                | RequestLineState::SchemaSecondSlash,
                _,
            ) => {
                return Err(HeadError::InvalidRequest);
            }
            (RequestLineState::BeforeHost, b' ') => {}
            (RequestLineState::BeforeHost | RequestLineState::HostStart, _) => {
                self.mark = self.pos;
                if ch != b'[' {
                    self.state = RequestLineState::Host;
                    return Ok(());
                }
                self.state = RequestLineState::HostLiteral;
            }
            (RequestLineState::Host, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-') => {}
            (RequestLineState::HostLiteral, b']') => self.state = RequestLineState::HostEnd,
            (RequestLineState::HostLiteral, b':') => {}
            (RequestLineState::HostLiteral, _) if is_unreserved_or_sub_delim(ch) => {}
            (RequestLineState::HostLiteral, _) => return Err(HeadError::InvalidRequest),
            (RequestLineState::Host | RequestLineState::HostEnd, b':') => {
                self.state = RequestLineState::PortStart
            }
            (RequestLineState::PortStart | RequestLineState::Port, b'0'..=b'9') => {
                self.state = RequestLineState::Port
            }
            _ => self.end_authority(ch, head)?,
        }
        self.pos += 1;
        Ok(())
    }

    fn end_authority(&mut self, ch: u8, head: &mut RequestHead) -> Result<(), HeadError> {
        head.host = Some(Span::new(self.mark, self.pos));
        if head.method == Method::Connect {
            // CONNECT wants "host:port", then the version: its "/" serves as the path
            if self.state != RequestLineState::Port || ch != b' ' {
                return Err(HeadError::InvalidRequest);
            }
            self.state = RequestLineState::AfterTarget;
            return Ok(());
        }
        match ch {
            b'/' => {
                self.target = self.pos;
                self.state = RequestLineState::AfterSlash;
            }
            b'?' => {
                self.target = self.pos;
                self.query = self.pos;
                head.empty_path = true;
                self.state = RequestLineState::Rest;
            }
            b' ' => {
                // no path at all: the first "/" of "://" serves as one
                head.target = Span::new(self.schema_end + 1, self.schema_end + 2);
                head.path = head.target;
                self.state = RequestLineState::AfterTarget;
            }
            _ => return Err(HeadError::InvalidRequest),
        }
        Ok(())
    }

    /// Parses a target between `start` and `end`, without a request line. A byte that ends the
    /// target must follow it. False if it is no path.
    pub(super) fn target(buf: &[u8], start: usize, end: usize, head: &mut RequestHead) -> bool {
        let mut line = LineParser {
            state: RequestLineState::AfterSlash,
            pos: start + 1,
            target: start,
            ..LineParser::default()
        };
        buf.get(start) == Some(&b'/')
            && line.path(buf, head).is_ok()
            && line.state == RequestLineState::AfterTarget
            && head.target.end as usize == end
    }

    /// Parses path, query and fragment, up to the space or the end of the line.
    #[inline]
    fn path(&mut self, buf: &[u8], head: &mut RequestHead) -> Result<(), HeadError> {
        let mut state = self.state;
        let mut pos = self.pos;
        while let Some(&ch) = buf.get(pos) {
            let class = CLASS[ch as usize];
            if class == Class::Usual {
                if state == RequestLineState::AfterSlash {
                    state = RequestLineState::Path;
                }
                pos += 1;
                continue;
            }
            match class {
                Class::Usual => {}
                Class::Slash => match state {
                    RequestLineState::Path => state = RequestLineState::AfterSlash,
                    RequestLineState::AfterSlash => {
                        head.complex = true;
                        state = RequestLineState::Rest;
                    }
                    _ => {}
                },
                Class::Dot => {
                    if state == RequestLineState::AfterSlash {
                        head.complex = true;
                        state = RequestLineState::Rest;
                    }
                }
                Class::Hash => {
                    head.complex = true;
                    if self.fragment == 0 {
                        self.fragment = pos;
                    }
                    state = RequestLineState::Rest;
                }
                Class::Percent | Class::Plus | Class::Question
                    if self.query != 0 || self.fragment != 0 => {}
                Class::Percent => {
                    head.quoted = true;
                    state = RequestLineState::Rest;
                }
                Class::Plus => head.plus = true,
                Class::Question => {
                    self.query = pos;
                    state = RequestLineState::Rest;
                }
                Class::End => {
                    self.pos = pos;
                    self.end_target(ch, head);
                    return Ok(());
                }
                Class::Bad => return Err(HeadError::InvalidRequest),
            }
            pos += 1;
        }
        self.state = state;
        self.pos = pos;
        Ok(())
    }

    /// Splits the target at the byte that ends it. That byte is not consumed, unless it is a space.
    #[inline]
    fn end_target(&mut self, ch: u8, head: &mut RequestHead) {
        let end = self.pos;
        head.target = Span::new(self.target, end);
        let fragment = if self.fragment == 0 { end } else { self.fragment };
        if self.query == 0 {
            head.path = Span::new(self.target, fragment);
        } else {
            head.path = Span::new(self.target, self.query);
            head.args = Some(Span::new(self.query + 1, fragment));
        }
        head.complex |= head.quoted | head.empty_path;
        self.state = RequestLineState::AfterTarget;
        if ch == b' ' {
            self.pos += 1;
        }
    }

    #[inline]
    fn after_target(
        &mut self,
        buf: &[u8],
        ch: u8,
        head: &mut RequestHead,
    ) -> Result<(), HeadError> {
        let usual = buf.get(self.pos..).is_some_and(|rest| rest.starts_with(b"HTTP/1.1\r\n"));
        if usual {
            head.protocol = Span::new(self.pos, self.pos);
            self.name_read(self.pos + 4, head);
            head.version = Version::Http11;
            head.minor = 1;
            self.pos += 9;
            self.finish(self.pos - 1, head);
            return Ok(());
        }
        match ch {
            b' ' => {}
            b'\r' => self.state = RequestLineState::AlmostDone,
            b'\n' => {
                self.finish(self.pos, head);
                return Ok(());
            }
            b'H' => {
                head.protocol = Span::new(self.pos, self.pos);
                self.matched = 1;
                self.state = RequestLineState::Protocol;
            }
            _ => return Err(HeadError::InvalidRequest),
        }
        self.pos += 1;
        Ok(())
    }

    /// Handles the slash of `HTTP/`, which is used as the path of a CONNECT request.
    fn name_read(&mut self, slash: usize, head: &mut RequestHead) {
        if head.method == Method::Connect {
            head.target = Span::new(slash, slash + 1);
            head.path = head.target;
        }
    }

    /// Parses from the `H` of the version to the line feed, one byte at a time.
    fn version(&mut self, ch: u8, head: &mut RequestHead) -> Result<(), HeadError> {
        match (self.state, ch) {
            (RequestLineState::Protocol, _) => {
                if b"HTTP/".get(self.matched as usize) != Some(&ch) {
                    return Err(HeadError::InvalidRequest);
                }
                self.matched += 1;
                if ch == b'/' {
                    self.name_read(self.pos, head);
                    self.state = RequestLineState::MajorFirst;
                }
            }
            (RequestLineState::MajorFirst, b'1') => self.state = RequestLineState::Major,
            (RequestLineState::MajorFirst, b'2'..=b'9')
            | (RequestLineState::Major, b'0'..=b'9') => {
                return Err(HeadError::InvalidVersion);
            }
            (RequestLineState::Major, b'.') => self.state = RequestLineState::MinorFirst,
            (RequestLineState::MinorFirst, b'0'..=b'9') => {
                head.minor = u16::from(ch - b'0');
                self.state = RequestLineState::Minor;
            }
            (RequestLineState::Minor, b'0'..=b'9') if head.minor <= 99 => {
                head.minor = head.minor * 10 + u16::from(ch - b'0');
            }
            (RequestLineState::Minor | RequestLineState::AfterVersion, b' ') => {
                self.version_read(head);
                self.state = RequestLineState::AfterVersion;
            }
            (RequestLineState::Minor | RequestLineState::AfterVersion, b'\r') => {
                self.version_read(head);
                self.state = RequestLineState::AlmostDone;
            }
            (RequestLineState::Minor | RequestLineState::AfterVersion, b'\n') => {
                self.version_read(head);
                self.finish(self.pos, head);
                return Ok(());
            }
            (RequestLineState::AlmostDone, b'\n') => {
                self.finish(self.pos - 1, head);
                return Ok(());
            }
            _ => return Err(HeadError::InvalidRequest),
        }
        self.pos += 1;
        Ok(())
    }

    fn version_read(&mut self, head: &mut RequestHead) {
        head.version = Version::of_minor(head.minor);
    }

    /// Completes the line. The line feed is at `self.pos`, and the text of the line ends at `end`.
    #[inline]
    fn finish(&mut self, end: usize, head: &mut RequestHead) {
        head.line = Span::new(self.start, end);
        head.protocol.end = if head.version == Version::Http09 { 0 } else { end as u32 };
        self.pos += 1;
        head.line_end = self.pos as u32;
        self.state = RequestLineState::Done;
    }
}

fn is_method_byte(ch: u8) -> bool {
    ch.is_ascii_uppercase() || ch == b'_' || ch == b'-'
}

/// RFC 3986's `unreserved` and `sub-delims`.
fn is_unreserved_or_sub_delim(ch: u8) -> bool {
    ch.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&ch)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Usual,
    Slash,
    Dot,
    Percent,
    Plus,
    Question,
    Hash,
    /// Space, CR, LF: the target ends.
    End,
    /// Control characters and DEL.
    Bad,
}

static CLASS: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut classes = [Class::Usual; 256];
    let mut ch = 0;
    while ch < 0x20 {
        classes[ch] = Class::Bad;
        ch += 1;
    }
    classes[0x7f] = Class::Bad;
    classes[b' ' as usize] = Class::End;
    classes[b'\r' as usize] = Class::End;
    classes[b'\n' as usize] = Class::End;
    classes[b'/' as usize] = Class::Slash;
    classes[b'.' as usize] = Class::Dot;
    classes[b'%' as usize] = Class::Percent;
    classes[b'+' as usize] = Class::Plus;
    classes[b'?' as usize] = Class::Question;
    classes[b'#' as usize] = Class::Hash;
    classes
}
