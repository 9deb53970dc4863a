//! The output of strace, as a list of system calls.

use std::collections::HashMap;

/// One system call of one thread.
#[derive(Debug)]
pub struct Call {
    /// The thread that made it.
    pub thread: u32,
    /// Its name.
    pub name: String,
    /// All between the parentheses.
    pub args: String,
    /// What came back: a number at its beginning, `?` where nothing came.
    pub result: String,
}

impl Call {
    /// The number that came back; none for errors.
    pub fn returned(&self) -> Option<u64> {
        let digits: String = self.result.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }

    /// A descriptor among the arguments.
    pub fn descriptor(&self, at: usize) -> Option<Descriptor<'_>> {
        Descriptor::read(self.args.split(", ").nth(at)?)
    }

    /// As it stands in the trace, for people.
    pub fn text(&self) -> String {
        format!("{} {}({}) = {}", self.thread, self.name, self.args, self.result)
    }
}

/// `5</path>`: a number, and what is behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor<'a> {
    pub number: u32,
    pub behind: &'a str,
}

impl<'a> Descriptor<'a> {
    fn read(text: &'a str) -> Option<Descriptor<'a>> {
        let (number, rest) = text.split_once('<')?;
        let behind = rest.split_once('>').map_or(rest, |(behind, _)| behind);
        Some(Descriptor { number: number.parse().ok()?, behind })
    }

    /// A file on a disk, as far as the path tells.
    pub fn is_file(&self) -> bool {
        let memory = ["/dev/", "/proc/", "/sys/", "/memfd:"];
        self.behind.starts_with('/') && !memory.iter().any(|place| self.behind.starts_with(place))
    }
}

/// All calls of a trace, each at its end; only closing counts from its beginning.
pub fn read(trace: &str) -> Vec<Call> {
    let mut begun: HashMap<u32, String> = HashMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some((thread, text)) = line.split_once(' ') else { continue };
        let (Ok(thread), text) = (thread.parse(), text.trim_start()) else { continue };
        if let Some(beginning) = text.strip_suffix("<unfinished ...>") {
            let beginning = beginning.trim_end().to_owned();
            if beginning.starts_with("close(") {
                // Its number may be another file's before strace sees the end of it.
                calls.extend(call(thread, &(beginning + ") = ?")));
            } else {
                begun.insert(thread, beginning);
            }
        } else if let Some((_, end)) =
            text.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>"))
        {
            let whole = begun.remove(&thread).map(|beginning| beginning + end);
            calls.extend(whole.and_then(|whole| call(thread, &whole)));
        } else {
            calls.extend(call(thread, text));
        }
    }
    // A thread that was still in a call when it ended: what it asked for counts all the same.
    calls.extend(begun.into_iter().filter_map(|(thread, text)| call(thread, &(text + ") = ?"))));
    calls
}

/// `openat(AT_FDCWD, "/x", O_RDONLY) = 3</x>`
fn call(thread: u32, text: &str) -> Option<Call> {
    let (name, rest) = text.split_once('(')?;
    let (args, result) = rest.rsplit_once(" = ")?;
    let args = args.trim_end().strip_suffix(')')?;
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_name.then(|| Call {
        thread,
        name: name.to_owned(),
        args: args.to_owned(),
        result: result.to_owned(),
    })
}

#[test]
fn a_trace_is_read() {
    let calls = read(
        "7 epoll_wait(5<anon_inode:[eventpoll]>,  <unfinished ...>\n\
         8  openat(AT_FDCWD</>, \"/a (b) = c\", O_RDONLY) = 12</a (b) = c>\n\
         7 <... epoll_wait resumed>[{events=EPOLLIN}], 64, -1) = 1\n\
         7 --- SIGCHLD {si_signo=SIGCHLD} ---\n\
         7 close(12</a> <unfinished ...>\n\
         7 <... close resumed>) = 0\n\
         8 +++ exited with 0 +++\n",
    );
    let names: Vec<_> = calls.iter().map(|c| (c.thread, c.name.as_str())).collect();
    assert_eq!(names, [(8, "openat"), (7, "epoll_wait"), (7, "close")]);
    assert_eq!(calls[1].returned(), Some(1));
    assert_eq!(calls[2].descriptor(0), Some(Descriptor { number: 12, behind: "/a" }));
    assert!(calls[2].descriptor(0).unwrap().is_file());
    assert!(!calls[1].descriptor(0).unwrap().is_file());
}
