//! Commands of an operator to the whole server, which come through one of its workers.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use weir_log::Level;

/// Something that all processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Open the log files anew.
    Reopen,
    /// Error logs take messages of this level, or as the configuration says.
    Level(Option<Level>),
    /// Servers behind were changed: requests that wait for one look again.
    Look,
}

/// What is asked for in place of the configuration in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeRequest {
    /// Another one, with this text.
    Text(Vec<u8>),
    /// One with a further line of `server` in a group.
    AddServer {
        /// `http` or `stream`.
        block: String,
        /// The group's name.
        group: String,
        /// The line's words; the first one is the address.
        words: Vec<String>,
    },
    /// One without the line of a server.
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
    /// As bytes, for another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, parts) = match self {
            ChangeRequest::Text(text) => return [b"=", text.as_slice()].concat(),
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

    /// What [`ChangeRequest::to_bytes`] wrote.
    pub fn of(bytes: &[u8]) -> Option<ChangeRequest> {
        let (kind, rest) = bytes.split_first()?;
        if *kind == b'=' {
            return Some(ChangeRequest::Text(rest.to_vec()));
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

/// What became of a request for another configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// Whether and how it is in use.
    pub kind: ChangeKind,
    /// The number of the line that is to blame; 0 for none.
    pub line: u32,
    /// What is to be said of it.
    pub text: String,
}

/// See [`ChangeOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// All loops of the workers that run have taken it.
    Taken,
    /// Workers that began with it have taken the place of those that ran.
    Reloaded,
    /// It is wrong.
    Wrong,
    /// It is right, and may not be taken in this way.
    Refused,
    /// Another one is being taken.
    Busy,
    /// Not all workers have taken it in time.
    Late,
    /// The master could not be asked.
    Unasked,
}

impl ChangeOutcome {
    /// Without a line.
    pub fn new(kind: ChangeKind, text: impl Into<String>) -> ChangeOutcome {
        ChangeOutcome { kind, line: 0, text: text.into() }
    }

    /// As bytes, for another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let kind = match self.kind {
            ChangeKind::Taken => b't',
            ChangeKind::Reloaded => b'n',
            ChangeKind::Wrong => b'w',
            ChangeKind::Refused => b'r',
            ChangeKind::Busy => b'b',
            ChangeKind::Late => b'l',
            ChangeKind::Unasked => b'u',
        };
        [&[kind][..], &self.line.to_le_bytes(), self.text.as_bytes()].concat()
    }

    /// What [`ChangeOutcome::to_bytes`] wrote.
    pub fn of(bytes: &[u8]) -> Option<ChangeOutcome> {
        let (head, text) = bytes.split_at_checked(5)?;
        let kind = match head.first()? {
            b't' => ChangeKind::Taken,
            b'n' => ChangeKind::Reloaded,
            b'w' => ChangeKind::Wrong,
            b'r' => ChangeKind::Refused,
            b'b' => ChangeKind::Busy,
            b'l' => ChangeKind::Late,
            b'u' => ChangeKind::Unasked,
            _ => return None,
        };
        let line = u32::from_le_bytes(head.get(1..)?.try_into().ok()?);
        Some(ChangeOutcome { kind, line, text: String::from_utf8_lossy(text).into_owned() })
    }
}

/// An outcome that is still to come, from whatever thread.
#[derive(Clone, Default)]
pub struct ChangeAnswer(Arc<Mutex<AnswerState>>);

#[derive(Default)]
struct AnswerState {
    outcome: Option<ChangeOutcome>,
    waker: Option<Waker>,
}

impl ChangeAnswer {
    /// It has come.
    pub fn give(&self, outcome: ChangeOutcome) {
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
    fn what_is_asked_and_answered_comes_back_as_it_was() {
        let (block, group) = ("http".to_owned(), "u".to_owned());
        let words = vec!["127.0.0.1:1".to_owned(), "weight=2".to_owned()];
        let server = words[0].clone();
        let requests = [
            ChangeRequest::Text(b"a\0b".to_vec()),
            ChangeRequest::AddServer { block: block.clone(), group: group.clone(), words },
            ChangeRequest::RemoveServer { block, group, server },
        ];
        for request in requests {
            assert_eq!(ChangeRequest::of(&request.to_bytes()), Some(request));
        }
        assert_eq!(ChangeRequest::of(b"?"), None);
        let outcome = ChangeOutcome { kind: ChangeKind::Wrong, line: 7, text: "no".to_owned() };
        assert_eq!(ChangeOutcome::of(&outcome.to_bytes()), Some(outcome));
        assert_eq!(ChangeOutcome::of(b"w"), None);
    }
}
