//! What the tools print on standard output.
//!
//! A reader that has gone, as `head` does, ends a tool in silence. A full disk is an error that is told.
//!
//! - In: text.
//! - Out: whether it has a reader, or why it cannot be written.
//! - Callers: the tools.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Whether anything reads what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The text was taken.
    There,
    /// The other end of the pipe is closed.
    Gone,
}

/// Standard output cannot be written.
#[derive(Debug)]
pub struct PrintError(io::Error);

impl fmt::Display for PrintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for PrintError {}

/// Prints a text at once.
///
/// # Errors
///
/// It cannot be written: the disk is full, say.
pub fn print(text: impl AsRef<[u8]>) -> Result<Reader, PrintError> {
    let mut out = io::stdout().lock();
    read(out.write_all(text.as_ref()).and_then(|()| out.flush()))
}

/// Why a tool that prints as it goes does not go on.
#[derive(Debug)]
pub enum Unprinted {
    /// Nothing reads what is printed. That is no error.
    NoReader,
    /// It cannot be written.
    Failed(PrintError),
}

impl fmt::Display for Unprinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unprinted::NoReader => f.write_str("nothing reads what is printed"),
            Unprinted::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unprinted {}

/// Prints a text at once, for a reader that is there.
///
/// # Errors
///
/// There is no reader, or it cannot be written.
pub fn print_to_reader(text: impl AsRef<[u8]>) -> Result<(), Unprinted> {
    match print(text) {
        Ok(Reader::There) => Ok(()),
        Ok(Reader::Gone) => Err(Unprinted::NoReader),
        Err(error) => Err(Unprinted::Failed(error)),
    }
}

/// What became of something that was written to standard output elsewhere.
///
/// # Errors
///
/// It could not be written.
pub fn read(written: io::Result<()>) -> Result<Reader, PrintError> {
    match written {
        Ok(()) => Ok(Reader::There),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(e) => Err(PrintError(e)),
    }
}

/// Prints a text, and says why if it cannot: the exit status of a tool that has nothing else to do, which is `status` or 1.
pub fn ending(tool: &str, text: impl AsRef<[u8]>, status: i32) -> i32 {
    ending_or(tool, text, status, 1)
}

/// The same for a tool that has another exit status, `unprinted`, for what cannot be printed.
pub fn ending_or(tool: &str, text: impl AsRef<[u8]>, status: i32, unprinted: i32) -> i32 {
    match print(text) {
        Ok(_) => status,
        Err(e) => {
            eprintln!("{tool}: {e}");
            unprinted
        }
    }
}

/// A text of another program or machine without control characters: a terminal obeys them, and a line end in it would
/// begin a line of the tool's.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_a_plain_text() {
        assert_eq!(plain("a\u{e4} b"), "a\u{e4} b");
        let plain = plain("\x1b]0;a\x07\n\r\u{9b}31mb\x7f");
        assert_eq!(plain, "\u{fffd}]0;a\u{fffd}\u{fffd}\u{fffd}\u{fffd}31mb\u{fffd}");
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        assert_eq!(read(Ok(())).ok(), Some(Reader::There));
        assert_eq!(read(Err(ErrorKind::BrokenPipe.into())).ok(), Some(Reader::Gone));
        let full = read(Err(ErrorKind::StorageFull.into())).unwrap_err().to_string();
        assert_eq!(full, "cannot write to standard output: no storage space");
    }
}
