//! The pid file of the master.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use weir_log::Cause;
use weir_sys::guarded;

/// Writes the id of this process, replacing the previous content.
pub fn write(path: &Path) -> io::Result<()> {
    let mut file = open(path, OFlags::WRONLY | OFlags::CREATE)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    writeln!(file, "{}", std::process::id())
}

/// Checks that the file can be written, without changing it.
pub fn check(path: &Path) -> io::Result<()> {
    match open(path, OFlags::RDWR) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        other => return other.map(drop),
    }
    open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    guarded::remove(path)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    guarded::open(path, flags, Mode::from_raw_mode(0o644))
}

/// Why no process id could be read, in nginx's words.
#[derive(Debug)]
pub enum Unread {
    /// The file cannot be read.
    File(io::Error),
    /// The file has other content.
    Content(String),
}

impl Unread {
    /// The message about this file.
    pub fn text(&self, path: &Path) -> String {
        match self {
            Unread::File(e) => format!("open() \"{}\" failed {}", path.display(), Cause(e)),
            Unread::Content(said) => {
                format!("invalid PID number \"{said}\" in \"{}\"", path.display())
            }
        }
    }
}

/// Reads a process id.
pub fn read(path: &Path) -> Result<Pid, Unread> {
    let bytes = fs::read(path).map_err(Unread::File)?;
    let text = String::from_utf8_lossy(&bytes);
    let said = text.trim_end_matches(['\r', '\n']);
    let is_number = said.bytes().all(|byte| byte.is_ascii_digit());
    let number = said.parse().ok().filter(|n| is_number && *n > 0).and_then(Pid::from_raw);
    number.ok_or_else(|| Unread::Content(said.chars().take(20).collect()))
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Path::new("pid file")))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let path = std::env::temp_dir().join(format!("weir-pidfile-{}", std::process::id()));
        fs::write(&path, "something long that was here before\n").unwrap();
        let said = read(&path).unwrap_err().text(&path);
        assert!(said.starts_with("invalid PID number \"something long that \" in "), "{said}");

        check(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 36);
        write(&path).unwrap();
        assert_eq!(read(&path).unwrap().as_raw_nonzero().get(), std::process::id() as i32);

        for wrong in ["", "\n", "0\n", "-5\n", "+5\n", "12x\n"] {
            fs::write(&path, wrong).unwrap();
            assert!(matches!(read(&path), Err(Unread::Content(_))), "{wrong:?}");
        }
        fs::remove_file(&path).unwrap();
        check(&path).unwrap();
        assert!(!path.exists());
        let said = read(&path).unwrap_err().text(&path);
        assert_eq!(
            said,
            format!("open() \"{}\" failed (2: No such file or directory)", path.display())
        );
    }
}
