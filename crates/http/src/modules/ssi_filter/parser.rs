//! Finds the commands in a page that comes in pieces.
//!
//! `<!--# command name="value" name='value' -->`

use bytes::Bytes;

/// The beginning of a command.
const OPEN: &[u8] = b"<!--#";
/// The longest name of a command, and of a parameter.
const NAME: usize = 32;

/// The next part of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Text to pass on.
    Text(Bytes),
    /// A command.
    Command(Command),
    /// The end of an invalid command. [`Event::Complaint`] has said why it is invalid.
    Broken,
    /// The error in the current command.
    Complaint(String),
}

/// A command, unevaluated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    /// Its name.
    pub name: Vec<u8>,
    /// Names and values of parameters, with their backslashes.
    pub params: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The parser's state.
#[derive(Debug)]
pub struct Parser {
    state: ParserState,
    command: Command,
    /// `ssi_value_length`
    longest_value: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    Text,
    /// The number of bytes of [`OPEN`] that matched.
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
    /// Skips to the end of an invalid command. The number of matched `-`.
    Broken(u8),
}

impl Parser {
    /// A parser at the beginning of a page.
    pub fn new(longest_value: usize) -> Parser {
        Parser { state: ParserState::Text, command: Command::default(), longest_value }
    }

    /// Takes the next event from `input`. `None` when it is used up.
    pub fn next(&mut self, input: &mut Bytes) -> Option<Event> {
        while !input.is_empty() {
            let event = match self.state {
                ParserState::Text => self.text(input),
                ParserState::Open(seen) => self.open(seen, input),
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

    /// Ends the page. An incomplete beginning of a command is text.
    pub fn end(&mut self) -> Option<Event> {
        match std::mem::replace(&mut self.state, ParserState::Text) {
            ParserState::Open(seen) => Some(opening(seen)),
            _ => None,
        }
    }

    fn text(&mut self, input: &mut Bytes) -> Option<Event> {
        match memchr::memchr(OPEN[0], input) {
            None => Some(Event::Text(std::mem::take(input))),
            Some(0) => {
                self.state = ParserState::Open(1);
                bytes::Buf::advance(input, 1);
                None
            }
            Some(at) => Some(Event::Text(input.split_to(at))),
        }
    }

    fn open(&mut self, seen: usize, input: &mut Bytes) -> Option<Event> {
        if input.first() == OPEN.get(seen) {
            bytes::Buf::advance(input, 1);
            self.state = ParserState::Open(seen + 1);
            if seen + 1 == OPEN.len() {
                self.state = ParserState::BeforeCommand;
                self.command = Command::default();
            }
            return None;
        }
        // This is not a command. The byte may begin one.
        self.state = ParserState::Text;
        Some(opening(seen))
    }

    fn inside(&mut self, byte: u8) -> Option<Event> {
        let blank = matches!(byte, b' ' | b'\r' | b'\n' | b'\t');
        match (self.state, byte) {
            (ParserState::BeforeCommand, _) if blank => None,
            (ParserState::BeforeCommand, _) => {
                self.command.name.push(byte);
                self.go(ParserState::Command)
            }
            (ParserState::Command | ParserState::AfterValue, _) if blank => {
                self.go(ParserState::BeforeParam)
            }
            (ParserState::Command | ParserState::BeforeParam | ParserState::AfterValue, b'-') => {
                self.go(ParserState::End(1))
            }
            (ParserState::Command, _) => self.command_byte(byte),
            (ParserState::BeforeParam, _) if blank => None,
            (ParserState::BeforeParam, _) => {
                self.command.params.push((vec![byte], Vec::new()));
                self.go(ParserState::Param)
            }
            (ParserState::Param, _) if blank => self.go(ParserState::BeforeEqual),
            (ParserState::Param | ParserState::BeforeEqual, b'=') => {
                self.go(ParserState::BeforeValue)
            }
            (ParserState::Param, _) => self.param_byte(byte),
            (ParserState::BeforeEqual | ParserState::BeforeValue, _) if blank => None,
            (ParserState::BeforeEqual, _) => self.unexpected(byte, "after", ""),
            (ParserState::BeforeValue, b'"' | b'\'') => self.go(ParserState::Value(byte)),
            (ParserState::BeforeValue, _) => self.unexpected(byte, "before", "value of "),
            (ParserState::Value(quote), _) if byte == quote => self.go(ParserState::AfterValue),
            (ParserState::Value(quote), b'\\') => {
                self.value_byte(byte, ParserState::Escaped(quote))
            }
            (ParserState::Value(quote) | ParserState::Escaped(quote), _) => {
                self.value_byte(byte, ParserState::Value(quote))
            }
            (ParserState::AfterValue, _) => {
                let (name, value) = self.param();
                let text = format!(
                    "unexpected \"{}\" symbol after \"{value}\" value of \"{name}\" parameter in \
                     \"{}\" SSI command",
                    char::from(byte),
                    self.name()
                );
                self.complain(0, text)
            }
            (ParserState::End(1), b'-') => self.go(ParserState::End(2)),
            (ParserState::End(2), b'>') => {
                self.state = ParserState::Text;
                Some(Event::Command(std::mem::take(&mut self.command)))
            }
            (ParserState::End(_), _) => {
                let (byte, name) = (char::from(byte), self.name());
                let text = format!("unexpected \"{byte}\" symbol in \"{name}\" SSI command");
                self.complain(0, text)
            }
            (ParserState::Broken(2), b'>') => {
                self.state = ParserState::Text;
                Some(Event::Broken)
            }
            (ParserState::Broken(seen), b'-') if seen < 2 => self.go(ParserState::Broken(seen + 1)),
            (ParserState::Broken(_), _) => self.go(ParserState::Broken(0)),
            (ParserState::Text | ParserState::Open(_), _) => None,
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

    fn value_byte(&mut self, byte: u8, next: ParserState) -> Option<Event> {
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
        self.state = ParserState::Broken(dashes);
        Some(Event::Complaint(text))
    }

    fn go(&mut self, state: ParserState) -> Option<Event> {
        self.state = state;
        None
    }

    fn name(&self) -> String {
        weir_log::Bytes(&self.command.name).to_string()
    }

    fn param(&self) -> (String, String) {
        let empty = (Vec::new(), Vec::new());
        let (name, value) = self.command.params.last().unwrap_or(&empty);
        (weir_log::Bytes(name).to_string(), weir_log::Bytes(value).to_string())
    }
}

impl Command {
    /// Writes the command, for a block that is stored.
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
