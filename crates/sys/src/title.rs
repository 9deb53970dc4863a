//! The name of a process in ps(1).
//!
//! Linux shows the memory in which execve(2) passed the arguments. Writing there changes the name.
//! The arguments are short, so the environment after them is used as well, once it was copied
//! elsewhere. proc(5): /proc/PID/stat, fields arg_start to env_end.

use std::ffi::OsString;
use std::io;

use crate::environment;

/// The memory that ps shows. A process has one owner of it.
#[derive(Debug)]
pub struct Title {
    start: usize,
    len: usize,
}

impl Title {
    /// Takes over the memory of the arguments and the environment.
    ///
    /// Read the arguments before, since `std::env::args` is wrong afterwards. The environment keeps
    /// its values, in other memory.
    ///
    /// # Errors
    ///
    /// If the process has several threads, or the kernel does not tell the addresses.
    pub fn take() -> io::Result<Title> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let (start, end) = places(&stat).ok_or(io::ErrorKind::Unsupported)?;
        // Copies every variable: std allocates a variable that is removed and set again.
        let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        environment::replace(&variables)?;
        Ok(Title { start, len: end - start })
    }

    /// Shows `text`, cut off at the size of the memory.
    pub fn set(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let shown = bytes.len().min(self.len.saturating_sub(1));
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.start);
        // SAFETY: these are `len` bytes of the initial stack, which stays mapped and writable. The
        // environment was moved away; the arguments, with a last byte that stays NUL, are read no
        // more.
        unsafe {
            std::ptr::write_bytes(start, 0, self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, shown);
        }
    }
}

/// The start of the arguments and the end of the environment, if they are adjacent.
fn places(stat: &str) -> Option<(usize, usize)> {
    // The second field is a name in parentheses that may contain any bytes.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<usize> = rest.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    // Fields are counted from 1 in proc(5); the first of `rest` is number 3.
    let [arg_start, arg_end, env_start, env_end] = fields.get(45..49)?.try_into().ok()?;
    let adjoin = arg_start > 0 && arg_start < arg_end && arg_end == env_start;
    (adjoin && env_start <= env_end).then_some((arg_start, env_end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_are_found_behind_any_name() {
        let head = "1 (a) b) S ".to_owned() + &"7 ".repeat(44);
        assert_eq!(places(&format!("{head}100 200 200 300 0")), Some((100, 300)));
        assert_eq!(places(&format!("{head}100 200 201 300 0")), None);
        assert_eq!(places(&format!("{head}0 0 0 0 0")), None);
        assert_eq!(places("1 (a) S 1 2"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(places(&own).is_some());
    }
}
