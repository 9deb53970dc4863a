//! Rules about disks: those of caches, of logs and of files that are served.

use super::when;
use crate::Level::{Red, Yellow};
use crate::judge::{Held, Looks};
use crate::snapshot::BlockedFile;

/// Files of caches cannot be read or written.
pub(super) fn cache_disk(looks: Looks<'_>) -> Vec<Held> {
    let (faults, unstored) = (looks.grown(|s| s.cache_faults), looks.grown(|s| s.unstored));
    let text = match (faults, unstored) {
        (0, 0) => return Vec::new(),
        (0, _) => "the disk of a cache is too slow: answers pass unstored".to_owned(),
        _ => "files of a cache cannot be written or read; the error log has the reason".to_owned(),
    };
    vec![Held { level: Yellow, subject: "caches".to_owned(), text, since: None }]
}

/// Log files do not take lines: their disk is full, too slow or broken.
pub(super) fn log_disk(looks: Looks<'_>) -> Vec<Held> {
    let text = "log files do not take lines, which are lost: their disk is full or too slow";
    when(looks.grown(|s| s.log_lost) > 0, Yellow, "logs", text)
}

/// The longest call on a file that is not a finding, in milliseconds.
const LONG_CALL: u64 = 2000;

/// Threads wait for a disk that does not answer.
pub(super) fn blocked_disk(looks: Looks<'_>) -> Vec<Held> {
    let all = || looks.now.blocked.iter().filter(|one| one.lasts > LONG_CALL);
    let Some(oldest) = all().max_by_key(|one| one.lasts) else { return Vec::new() };
    let BlockedFile { pid, lasts, what, .. } = oldest;
    let others = match all().count() - 1 {
        0 => String::new(),
        1 => ", and one in another worker".to_owned(),
        n => format!(", and one in each of {n} other workers"),
    };
    let text = format!("a disk blocks: {what} does not end in worker process {pid}{others}");
    let level = if all().any(|one| one.reads) { Red } else { Yellow };
    let since = Some(looks.now.at.saturating_sub(*lasts));
    vec![Held { level, subject: "disk".to_owned(), text, since }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{NOW, finds};
    use crate::snapshot::Snapshot;

    #[test]
    fn the_oldest_operation_that_a_disk_blocks_is_named() {
        let of = |pid, lasts, reads| {
            let what = format!("open \"/disk/{pid}\"");
            BlockedFile { pid, lasts, reads, what }
        };
        let with = |blocked| finds(&Snapshot { at: NOW, blocked, ..Snapshot::default() });
        assert_eq!(with(vec![of(7, 1900, true)]), []);
        let text = "a disk blocks: open \"/disk/7\" does not end in worker process 7";
        let found = with(vec![of(7, 2100, false), of(8, 1500, true)]);
        assert_eq!(found, [("blocked_disk".to_owned(), Yellow, text.to_owned())]);
        let found = with(vec![of(7, 2200, false), of(8, 2100, true)]);
        let text = format!("{text}, and one in another worker");
        assert_eq!(found, [("blocked_disk".to_owned(), Red, text)]);
    }
}
