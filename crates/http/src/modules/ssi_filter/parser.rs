//! Finds commands in a page, however the page is cut into pieces.
//!
//! `<!--# command name="value" name='value' -->`

use bytes::Bytes;

/// What a command begins with.
const OPEN: &[u8] = b"<!--#";
/// The longest name of a command, and of a parameter.
const NAME: usize = 32;

/// What comes next in a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes to pass on.
    Text(Bytes),
    /// A command.
    Command(Command),
    /// A command that cannot be read; it was complained about by [`Event::Complaint`].
    Broken,
    /// What is wrong with the command that is being read.
    Complaint(String),
}

/// A command as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    /// Its name.
    pub name: Vec<u8>,
    /// Names and values, with backslashes as written.
    pub params: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where in a page the reading stands.
#[derive(Debug)]
pub struct Parser {
    state: State,
    command: Command,
    /// `ssi_value_length`
    longest_value: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    /// This many bytes of [`OPEN`] were seen.
    Open(usize),
    BeforeCommand,
    Command,
    BeforeParam,
    Param,
    BeforeEqual,
    BeforeValue,
    Value(u8),
    Escaped(u8),
    AfterValue,
    /// `-` was seen, then `--`.
    End(u8),
    /// Skips to the end of a broken command; so many `-` were seen.
    Broken(u8),
}

impl Parser {
    /// At the begin of a page.
    pub fn new(longest_value: usize) -> Parser {
        Parser { state: State::Text, command: Command::default(), longest_value }
    }

    /// Takes from `input` what belongs to the next event; `None` when it is used up.
    pub fn next(&mut self, input: &mut Bytes) -> Option<Event> {
        while !input.is_empty() {
            let event = match self.state {
                State::Text => self.text(input),
                State::Open(seen) => self.open(seen, input),
                _ => {
                    let byte = input.split_to(1);
                    self.inside(byte.first().copied().unwrap_or_default())
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// The page ends: what looked like the begin of a command was text.
    pub fn end(&mut self) -> Option<Event> {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Open(seen) => Some(opening(seen)),
            _ => None,
        }
    }

    fn text(&mut self, input: &mut Bytes) -> Option<Event> {
        match memchr::memchr(OPEN[0], input) {
            None => Some(Event::Text(std::mem::take(input))),
            Some(0) => {
                self.state = State::Open(1);
                bytes::Buf::advance(input, 1);
                None
            }
            Some(at) => Some(Event::Text(input.split_to(at))),
        }
    }

    fn open(&mut self, seen: usize, input: &mut Bytes) -> Option<Event> {
        if input.first() == OPEN.get(seen) {
            bytes::Buf::advance(input, 1);
            self.state = State::Open(seen + 1);
            if seen + 1 == OPEN.len() {
                self.state = State::BeforeCommand;
                self.command = Command::default();
            }
            return None;
        }
        // Not a command after all; the byte may begin one.
        self.state = State::Text;
        Some(opening(seen))
    }

    fn inside(&mut self, byte: u8) -> Option<Event> {
        let blank = matches!(byte, b' ' | b'\r' | b'\n' | b'\t');
        match (self.state, byte) {
            (State::BeforeCommand, _) if blank => None,
            (State::BeforeCommand, _) => {
                self.command.name.push(byte);
                self.go(State::Command)
            }
            (State::Command | State::AfterValue, _) if blank => self.go(State::BeforeParam),
            (State::Command | State::BeforeParam | State::AfterValue, b'-') => {
                self.go(State::End(1))
            }
            (State::Command, _) => self.command_byte(byte),
            (State::BeforeParam, _) if blank => None,
            (State::BeforeParam, _) => {
                self.command.params.push((vec![byte], Vec::new()));
                self.go(State::Param)
            }
            (State::Param, _) if blank => self.go(State::BeforeEqual),
            (State::Param | State::BeforeEqual, b'=') => self.go(State::BeforeValue),
            (State::Param, _) => self.param_byte(byte),
            (State::BeforeEqual | State::BeforeValue, _) if blank => None,
            (State::BeforeEqual, _) => self.unexpected(byte, "after", ""),
            (State::BeforeValue, b'"' | b'\'') => self.go(State::Value(byte)),
            (State::BeforeValue, _) => self.unexpected(byte, "before", "value of "),
            (State::Value(quote), _) if byte == quote => self.go(State::AfterValue),
            (State::Value(quote), b'\\') => self.value_byte(byte, State::Escaped(quote)),
            (State::Value(quote) | State::Escaped(quote), _) => {
                self.value_byte(byte, State::Value(quote))
            }
            (State::AfterValue, _) => {
                let (name, value) = self.param();
                let text = format!(
                    "unexpected \"{}\" symbol after \"{value}\" value of \"{name}\" parameter in \
                     \"{}\" SSI command",
                    char::from(byte),
                    self.name()
                );
                self.complain(0, text)
            }
            (State::End(1), b'-') => self.go(State::End(2)),
            (State::End(2), b'>') => {
                self.state = State::Text;
                Some(Event::Command(std::mem::take(&mut self.command)))
            }
            (State::End(_), _) => {
                let (byte, name) = (char::from(byte), self.name());
                let text = format!("unexpected \"{byte}\" symbol in \"{name}\" SSI command");
                self.complain(0, text)
            }
            (State::Broken(2), b'>') => {
                self.state = State::Text;
                Some(Event::Broken)
            }
            (State::Broken(seen), b'-') if seen < 2 => self.go(State::Broken(seen + 1)),
            (State::Broken(_), _) => self.go(State::Broken(0)),
            (State::Text | State::Open(_), _) => None,
        }
    }

    fn command_byte(&mut self, byte: u8) -> Option<Event> {
        if self.command.name.len() == NAME {
            let (name, byte) = (self.name(), char::from(byte));
            let text = format!("the \"{name}{byte}...\" SSI command is too long");
            return self.complain(0, text);
        }
        self.command.name.push(byte);
        None
    }

    fn param_byte(&mut self, byte: u8) -> Option<Event> {
        if byte == b'-' {
            return self.unexpected(byte, "after", "");
        }
        let (name, _) = self.command.params.last_mut()?;
        if name.len() < NAME {
            name.push(byte);
            return None;
        }
        let (param, _) = self.param();
        let (name, byte) = (self.name(), char::from(byte));
        let text = format!("too long \"{param}{byte}...\" parameter in \"{name}\" SSI command");
        self.complain(0, text)
    }

    fn value_byte(&mut self, byte: u8, next: State) -> Option<Event> {
        let longest = self.longest_value;
        let (_, value) = self.command.params.last_mut()?;
        if value.len() < longest {
            value.push(byte);
            return self.go(next);
        }
        let (param, value) = self.param();
        let (name, byte) = (self.name(), char::from(byte));
        let text = format!(
            "too long \"{value}{byte}...\" value of \"{param}\" parameter in \"{name}\" SSI command"
        );
        self.complain(0, text)
    }

    fn unexpected(&mut self, byte: u8, place: &str, of: &str) -> Option<Event> {
        let (param, _) = self.param();
        let (name, symbol) = (self.name(), char::from(byte));
        let text = format!(
            "unexpected \"{symbol}\" symbol {place} {of}\"{param}\" parameter in \"{name}\" SSI \
             command"
        );
        self.complain(u8::from(byte == b'-'), text)
    }

    fn complain(&mut self, dashes: u8, text: String) -> Option<Event> {
        self.state = State::Broken(dashes);
        Some(Event::Complaint(text))
    }

    fn go(&mut self, state: State) -> Option<Event> {
        self.state = state;
        None
    }

    fn name(&self) -> String {
        String::from_utf8_lossy(&self.command.name).into_owned()
    }

    fn param(&self) -> (String, String) {
        let empty = (Vec::new(), Vec::new());
        let (name, value) = self.command.params.last().unwrap_or(&empty);
        (String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).into_owned())
    }
}

impl Command {
    /// The command as it may be written again, for a block that is kept.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(OPEN);
        out.extend_from_slice(&self.name);
        for (name, value) in &self.params {
            for part in [b" ", name.as_slice(), b"=\"", value, b"\""] {
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(b" -->");
    }
}

fn opening(seen: usize) -> Event {
    Event::Text(Bytes::from_static(OPEN.get(..seen).unwrap_or_default()))
}
