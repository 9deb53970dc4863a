//! Commands of an operator to the whole server. One of its workers receives them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use weir_log::Level;

/// A command that all processes carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Reopen the log files.
    Reopen,
    /// Set the level of the error logs. `None`: as configured.
    Level(Option<Level>),
    /// Servers of a group were changed, so requests that wait for one check again.
    Look,
}

/// A change of the configuration in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeRequest {
    /// Another configuration, as text.
    Text(Vec<u8>),
    /// Another configuration, as a tree in the form of `weir_conf::write_bytes`.
    Tree(Vec<u8>),
    /// Another configuration, in the form of `weir_conf::Parts`.
    Parts(Vec<u8>),
    /// A further `server` line in a group.
    AddServer {
        /// `http` or `stream`.
        block: String,
        /// The group's name.
        group: String,
        /// The words of the line. The first one is the address.
        words: Vec<String>,
    },
    /// A group without the line of a server.
    RemoveServer {
        /// `http` or `stream`.
        block: String,
        /// The group's name.
        group: String,
        /// The first word of the line.
        server: String,
    },
}

impl ChangeRequest {
    /// Encodes the request for another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, parts) = match self {
            ChangeRequest::Text(text) => return [b"=", text.as_slice()].concat(),
            ChangeRequest::Tree(tree) => return [b"*", tree.as_slice()].concat(),
            ChangeRequest::Parts(parts) => return [b"#", parts.as_slice()].concat(),
            ChangeRequest::AddServer { block, group, words } => {
                let words = words.iter().map(String::as_str);
                ("+", [block.as_str(), group].into_iter().chain(words).collect::<Vec<_>>())
            }
            ChangeRequest::RemoveServer { block, group, server } => {
                ("-", vec![block.as_str(), group, server])
            }
        };
        format!("{kind}{}", parts.join("\0")).into_bytes()
    }

    /// Decodes the bytes of [`ChangeRequest::to_bytes`].
    pub fn of(bytes: &[u8]) -> Option<ChangeRequest> {
        let (kind, rest) = bytes.split_first()?;
        match kind {
            b'=' => return Some(ChangeRequest::Text(rest.to_vec())),
            b'*' => return Some(ChangeRequest::Tree(rest.to_vec())),
            b'#' => return Some(ChangeRequest::Parts(rest.to_vec())),
            _ => {}
        }
        let mut parts = std::str::from_utf8(rest).ok()?.split('\0').map(str::to_owned);
        let (block, group, first) = (parts.next()?, parts.next()?, parts.next()?);
        match kind {
            b'+' => {
                let words = std::iter::once(first).chain(parts).collect();
                Some(ChangeRequest::AddServer { block, group, words })
            }
            b'-' => Some(ChangeRequest::RemoveServer { block, group, server: first }),
            _ => None,
        }
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// Whether and how the configuration is in use.
    pub kind: ChangeKind,
    /// The place of the error.
    pub place: ChangePlace,
    /// A text for the operator.
    pub text: String,
}

/// The place of an error in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangePlace {
    /// The name of the text. Empty if there is none.
    pub file: String,
    /// The number of the line. 0 if there is none.
    pub line: u32,
    /// The directive's index in the outermost list, then in the block of that, and so on. Empty if
    /// there is none.
    pub path: Vec<u32>,
}

/// The kind of a [`ChangeOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// All loops of the present workers use it.
    Taken,
    /// Workers that began with it have replaced the previous ones.
    Reloaded,
    /// It has an error.
    Wrong,
    /// The bytes are no tree, or no parts.
    Unreadable,
    /// The group, the server in it, or a part is unknown.
    Unknown,
    /// The group has this server.
    Present,
    /// It is valid, but cannot be changed in this way.
    Refused,
    /// Another change is under way.
    Busy,
    /// Some workers did not use it in time.
    Late,
    /// The master could not be reached.
    Unasked,
}

impl ChangeOutcome {
    /// An outcome without a place.
    pub fn new(kind: ChangeKind, text: impl Into<String>) -> ChangeOutcome {
        ChangeOutcome { kind, place: ChangePlace::default(), text: text.into() }
    }

    /// Encodes the outcome for another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ChangePlace { file, line, path } = &self.place;
        let kind =
            KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(b'?', |(_, byte)| *byte);
        let lengths = [file.len() as u32, path.len() as u32, *line];
        let numbers = lengths.iter().chain(path).flat_map(|n| n.to_le_bytes());
        let head: Vec<u8> = std::iter::once(kind).chain(numbers).collect();
        [head.as_slice(), file.as_bytes(), self.text.as_bytes()].concat()
    }

    /// Decodes the bytes of [`ChangeOutcome::to_bytes`].
    pub fn of(bytes: &[u8]) -> Option<ChangeOutcome> {
        let (byte, mut rest) = bytes.split_first()?;
        let kind = KINDS.iter().find(|(_, known)| known == byte).map(|(kind, _)| *kind)?;
        let mut number = || {
            let (number, left) = rest.split_first_chunk()?;
            rest = left;
            Some(u32::from_le_bytes(*number))
        };
        let (file, steps, line) = (number()?, number()?, number()?);
        let path = (0..steps).map(|_| number()).collect::<Option<_>>()?;
        let (file, text) = rest.split_at_checked(file as usize)?;
        let [file, text] = [file, text].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        Some(ChangeOutcome { kind, place: ChangePlace { file, line, path }, text })
    }
}

const KINDS: [(ChangeKind, u8); 10] = [
    (ChangeKind::Taken, b't'),
    (ChangeKind::Reloaded, b'n'),
    (ChangeKind::Wrong, b'w'),
    (ChangeKind::Unreadable, b'm'),
    (ChangeKind::Unknown, b'k'),
    (ChangeKind::Present, b'p'),
    (ChangeKind::Refused, b'r'),
    (ChangeKind::Busy, b'b'),
    (ChangeKind::Late, b'l'),
    (ChangeKind::Unasked, b'u'),
];

/// A future outcome. Any thread may set it.
#[derive(Clone, Default)]
pub struct ChangeAnswer(Arc<Mutex<AnswerState>>);

#[derive(Default)]
struct AnswerState {
    outcome: Option<ChangeOutcome>,
    waker: Option<Waker>,
}

impl ChangeAnswer {
    /// Sets the outcome and wakes the task that waits for it.
    pub fn set(&self, outcome: ChangeOutcome) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.outcome = Some(outcome);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl Future for ChangeAnswer {
    type Output = ChangeOutcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ChangeOutcome> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_outcomes_survive_their_encoding() {
        let (block, group) = ("http".to_owned(), "u".to_owned());
        let words = vec!["127.0.0.1:1".to_owned(), "weight=2".to_owned()];
        let server = words[0].clone();
        let requests = [
            ChangeRequest::Text(b"a\0b".to_vec()),
            ChangeRequest::Tree(b"\0=".to_vec()),
            ChangeRequest::AddServer { block: block.clone(), group: group.clone(), words },
            ChangeRequest::RemoveServer { block, group, server },
        ];
        for request in requests {
            assert_eq!(ChangeRequest::of(&request.to_bytes()), Some(request));
        }
        assert_eq!(ChangeRequest::of(b"?"), None);
        for (kind, _) in KINDS {
            let place = ChangePlace { file: "f".to_owned(), line: 7, path: vec![1, 0, 9] };
            let outcome = ChangeOutcome { kind, place, text: "no".to_owned() };
            let bytes = outcome.to_bytes();
            assert_eq!(ChangeOutcome::of(&bytes), Some(outcome));
            assert!((0..bytes.len() - 3).all(|n| ChangeOutcome::of(&bytes[..n]).is_none()));
        }
        assert_eq!(ChangeOutcome::of(b"w"), None);
    }
}
