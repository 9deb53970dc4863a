//! The newest lines that a thread has logged, kept for scripts that fetch them. OpenResty: `lua_capture_error_log`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Level;

/// What a line takes beside its bytes.
const BESIDE: usize = 16;

thread_local! {
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// A line that was kept.
#[derive(Debug, PartialEq)]
pub struct CapturedLine {
    /// Its level.
    pub level: Level,
    /// Its time, in seconds since 1970.
    pub time: f64,
    /// The line without its newline.
    pub line: Vec<u8>,
}

struct Kept {
    room: usize,
    used: usize,
    /// The least urgent level that is kept.
    least: Level,
    lines: VecDeque<CapturedLine>,
}

/// From now on this thread keeps its newest lines, in so many bytes. `None` ends that.
pub fn capture(bytes: Option<usize>) {
    let kept =
        bytes.map(|room| Kept { room, used: 0, least: Level::Debug, lines: VecDeque::new() });
    KEPT.set(kept);
}

/// Keeps only lines of this level and of more urgent ones. Returns false if the thread keeps no lines.
pub fn capture_level(least: Level) -> bool {
    KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept.least = least).is_some())
}

/// Removes and returns the oldest line, if there is one. `None` if the thread keeps no lines.
pub fn take_captured() -> Option<Option<CapturedLine>> {
    KEPT.with_borrow_mut(|kept| kept.as_mut().map(Kept::take))
}

/// Keeps a line, if the thread keeps any.
pub(crate) fn add(level: Level, line: &[u8]) {
    // The thread-local value is gone while its thread ends.
    let _ = KEPT.try_with(|kept| {
        if let Ok(mut kept) = kept.try_borrow_mut()
            && let Some(kept) = kept.as_mut()
        {
            kept.add(level, line);
        }
    });
}

impl Kept {
    fn take(&mut self) -> Option<CapturedLine> {
        let oldest = self.lines.pop_front()?;
        self.used = self.used.saturating_sub(oldest.line.len() + BESIDE);
        Some(oldest)
    }

    /// Adds a line. The oldest lines make room.
    fn add(&mut self, level: Level, line: &[u8]) {
        let size = line.len() + BESIDE;
        if level > self.least || size > self.room {
            return;
        }
        while self.used + size > self.room && self.take().is_some() {}
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = since.as_millis() as f64 / 1000.0;
        self.lines.push_back(CapturedLine { level, time, line: line.to_vec() });
        self.used += size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_of_the_thread_are_kept_within_their_room() {
        assert_eq!(take_captured(), None);
        assert!(!capture_level(Level::Warn));
        add(Level::Error, b"too early");
        capture(Some(100));
        let next = || take_captured().unwrap().map(|line| (line.level, line.line));
        assert_eq!(next(), None);
        for text in [&[b'a'; 30], &[b'b'; 30], &[b'c'; 30]] {
            add(Level::Error, text);
        }
        assert_eq!(next(), Some((Level::Error, vec![b'b'; 30])));
        assert!(capture_level(Level::Error));
        add(Level::Warn, b"not urgent");
        add(Level::Error, &[b'd'; 200]);
        assert_eq!(next(), Some((Level::Error, vec![b'c'; 30])));
        assert_eq!(next(), None);
        add(Level::Crit, b"kept");
        assert_eq!(std::thread::spawn(take_captured).join().unwrap(), None);
        capture(None);
        assert_eq!(take_captured(), None);
    }
}
