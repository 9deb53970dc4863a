//! IMAP: a tag, a verb and arguments, which may be literals that span lines.

use memchr::memchr;

/// What the received bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum ImapProgress {
    /// The command is not whole.
    More,
    /// The client waits for leave to send a literal.
    Literal,
    /// A command, of so many bytes.
    Command {
        /// What it says.
        command: ImapCommand,
        /// Its length, with the end of its last line.
        len: usize,
    },
    /// A line that is no command.
    Invalid {
        /// The tag with its space, where the line has one.
        tag: Vec<u8>,
        /// Its length.
        len: usize,
        /// A literal follows without being asked for: where it ends is not known.
        literal_follows: bool,
    },
}

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub struct ImapCommand {
    /// The tag, with its space.
    pub tag: Vec<u8>,
    /// What is to be done.
    pub verb: ImapVerb,
    /// The arguments, without quotes.
    pub args: Vec<Vec<u8>>,
}

/// The commands that a client may send before it is logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImapVerb {
    /// Name and password.
    Login,
    /// The end.
    Logout,
    /// What is spoken here.
    Capability,
    /// Nothing.
    Noop,
    /// TLS begins.
    StartTls,
    /// Another way to log in.
    Authenticate,
}

const VERBS: &[(&str, ImapVerb)] = &[
    ("LOGIN", ImapVerb::Login),
    ("LOGOUT", ImapVerb::Logout),
    ("CAPABILITY", ImapVerb::Capability),
    ("NOOP", ImapVerb::Noop),
    ("STARTTLS", ImapVerb::StartTls),
    ("AUTHENTICATE", ImapVerb::Authenticate),
];

/// The longest tag, and the most arguments. nginx: ngx_mail_imap_parse_command.
const TAG: usize = 32;
const ARGUMENTS: usize = 3;

/// Reads a command. `granted`: how many literals of it the client has leave for.
pub fn imap(input: &[u8], granted: usize) -> ImapProgress {
    let mut reader = ImapReader { input, at: 0, tag: Vec::new(), granted };
    match reader.command() {
        Ok((verb, args)) => ImapProgress::Command {
            command: ImapCommand { tag: reader.tag, verb, args },
            len: reader.at,
        },
        Err(Stop::More) => ImapProgress::More,
        Err(Stop::Literal) => ImapProgress::Literal,
        Err(Stop::Invalid) => reader.invalid(),
    }
}

/// The tag at the beginning, with its space; empty where there is none.
pub fn imap_tag(input: &[u8]) -> &[u8] {
    let is_tag = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let length = input.iter().take_while(|b| is_tag(b)).count();
    let has_tag = length <= TAG && input.get(length) == Some(&b' ');
    input.get(..if has_tag { length + 1 } else { 0 }).unwrap_or_default()
}

enum Stop {
    More,
    Literal,
    Invalid,
}

struct ImapReader<'a> {
    input: &'a [u8],
    at: usize,
    tag: Vec<u8>,
    granted: usize,
}

impl ImapReader<'_> {
    fn peek(&self) -> Result<u8, Stop> {
        self.input.get(self.at).copied().ok_or(Stop::More)
    }

    fn spaces(&mut self) -> Result<u8, Stop> {
        loop {
            match self.peek()? {
                b' ' => self.at += 1,
                other => return Ok(other),
            }
        }
    }

    /// What stands from here up to one of these.
    fn until(&mut self, is_end: impl Fn(u8) -> bool) -> Result<&[u8], Stop> {
        let from = self.at;
        while !is_end(self.peek()?) {
            self.at += 1;
        }
        Ok(self.input.get(from..self.at).unwrap_or_default())
    }

    /// The end of a line, if it stands here.
    fn line_end(&mut self) -> Result<bool, Stop> {
        match self.peek()? {
            b'\n' => self.at += 1,
            b'\r' => {
                self.at += 1;
                if self.peek()? != b'\n' {
                    return Err(Stop::Invalid);
                }
                self.at += 1;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn command(&mut self) -> Result<(ImapVerb, Vec<Vec<u8>>), Stop> {
        self.tag = imap_tag(self.input).to_vec();
        self.at = self.tag.len();
        if self.tag.is_empty() {
            return Err(Stop::Invalid);
        }
        self.spaces()?;
        let name = self.until(|b| matches!(b, b' ' | b'\r' | b'\n'))?;
        let known = VERBS.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        let Some(&(_, verb)) = known else { return Err(Stop::Invalid) };
        let mut args = Vec::new();
        loop {
            let next = self.spaces()?;
            if self.line_end()? {
                return Ok((verb, args));
            }
            if args.len() == ARGUMENTS {
                return Err(Stop::Invalid);
            }
            args.push(match next {
                b'"' => self.quoted()?,
                b'{' => self.literal()?,
                _ => self.until(|b| matches!(b, b' ' | b'\r' | b'\n'))?.to_vec(),
            });
        }
    }

    fn quoted(&mut self) -> Result<Vec<u8>, Stop> {
        let mut text = Vec::new();
        loop {
            self.at += 1;
            match self.peek()? {
                b'"' => break,
                b'\r' | b'\n' => return Err(Stop::Invalid),
                b'\\' => {
                    self.at += 1;
                    match self.peek()? {
                        b'\r' | b'\n' => return Err(Stop::Invalid),
                        escaped => text.push(escaped),
                    }
                }
                other => text.push(other),
            }
        }
        self.at += 1;
        Ok(text)
    }

    fn literal(&mut self) -> Result<Vec<u8>, Stop> {
        self.at += 1;
        let digits = self.until(|b| !b.is_ascii_digit())?;
        let length = std::str::from_utf8(digits).ok().and_then(|text| text.parse::<usize>().ok());
        let length = length.ok_or(Stop::Invalid)?;
        let waits = self.peek()? != b'+';
        if !waits {
            self.at += 1;
        }
        if self.peek()? != b'}' {
            return Err(Stop::Invalid);
        }
        self.at += 1;
        if !self.line_end()? {
            return Err(Stop::Invalid);
        }
        if waits {
            self.granted = self.granted.checked_sub(1).ok_or(Stop::Literal)?;
        }
        let end = self.at.checked_add(length).ok_or(Stop::Invalid)?;
        let text = self.input.get(self.at..end).ok_or(Stop::More)?.to_vec();
        self.at = end;
        match self.peek()? {
            b' ' | b'\r' | b'\n' => Ok(text),
            _ => Err(Stop::Invalid),
        }
    }

    /// The line up to its end. Until that is there, nothing is said.
    fn invalid(self) -> ImapProgress {
        let rest = self.input.get(self.at..).unwrap_or_default();
        let Some(end) = memchr(b'\n', rest) else { return ImapProgress::More };
        let len = self.at + end + 1;
        let line = self.input.get(..len - 1).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        ImapProgress::Invalid { tag: self.tag, len, literal_follows: line.ends_with(b"+}") }
    }
}
