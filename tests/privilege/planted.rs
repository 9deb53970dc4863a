//! What another user plants where the master makes or opens something: links, pipes and sockets,
//! at its start, at a reload and when logs are reopened.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use weir_testkit::{Dice, Dir, Process, ask_until, free_port, number, seed, until};

use super::{DAEMON, WEIR, is_root, outside, state, strace, theirs};

/// What the master makes or opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    ErrorLog,
    AccessLog,
    PidFile,
    Temporary,
    Cache,
    Socket,
}

/// What stands in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    LinkToFile,
    LinkToDirectory,
    LinkToNothing,
    HardLink,
    Fifo,
    Socket,
    /// The directory above is a link, and what is named is there, or is not.
    Above,
    AboveNothing,
}

/// When the master meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Start,
    Reload,
    Reopen,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    place: Place,
    plant: Plant,
    moment: Moment,
}

impl Case {
    fn draw(dice: &mut Dice) -> Case {
        use {Moment as M, Place as P, Plant as W};
        let place =
            dice.pick(&[P::ErrorLog, P::AccessLog, P::PidFile, P::Temporary, P::Cache, P::Socket]);
        let plant = match place {
            // To bind where something stands fails by itself.
            P::Socket => dice.pick(&[W::Above, W::AboveNothing]),
            _ => dice.pick(&[
                W::LinkToFile,
                W::LinkToDirectory,
                W::LinkToNothing,
                W::HardLink,
                W::Fifo,
                W::Socket,
                W::Above,
                W::AboveNothing,
            ]),
        };
        let moment = match place {
            P::ErrorLog | P::AccessLog => dice.pick(&[M::Start, M::Reload, M::Reopen]),
            _ => dice.pick(&[M::Start, M::Reload]),
        };
        Case { place, plant, moment }
    }

    fn name(self) -> &'static str {
        if self.plant == Plant::AboveNothing { "nothing" } else { "there" }
    }

    /// A configuration; its place is named in it, or is not yet.
    fn conf(self, dir: &Path, port: u16, named: bool) -> String {
        let path = format!("{}/theirs/sub/{}", dir.display(), self.name());
        let at = |place: Place| named && self.place == place;
        let line = |place: Place, text: &str| match at(place) {
            true => text.replace("PATH", &path),
            false => String::new(),
        };
        let pid = if at(Place::PidFile) { path.clone() } else { format!("{}/pid", dir.display()) };
        format!(
            "daemon off; user daemon; pid {pid}; error_log {0}/error.log notice; {1} events {{ }}
             http {{ access_log off; {2} {3} server {{ listen 127.0.0.1:{port}; {4} {5} return 200 x; }} }}",
            dir.display(),
            line(Place::ErrorLog, "error_log PATH notice;"),
            line(Place::Temporary, "client_body_temp_path PATH;"),
            line(Place::Cache, "proxy_cache_path PATH keys_zone=zone:64k;"),
            line(Place::AccessLog, "access_log PATH;"),
            line(Place::Socket, "listen unix:PATH;"),
        )
    }

    /// Puts it into the place of what may be there.
    fn plant(self, dir: &Dir, outside: &Path) {
        let sub = dir.file("theirs/sub");
        if matches!(self.plant, Plant::Above | Plant::AboveNothing) {
            fs::rename(&sub, dir.file("theirs/before")).unwrap();
            symlink(outside, &sub).unwrap();
            lchown(&sub, Some(DAEMON), Some(DAEMON)).unwrap();
            return;
        }
        let path = sub.join(self.name());
        let _ = fs::rename(&path, sub.join("before"));
        match self.plant {
            Plant::LinkToFile => symlink(outside.join("victim"), &path).unwrap(),
            Plant::LinkToDirectory => symlink(outside.join("directory"), &path).unwrap(),
            Plant::LinkToNothing => symlink(outside.join("made"), &path).unwrap(),
            Plant::HardLink => return fs::hard_link(outside.join("victim"), &path).unwrap(),
            Plant::Fifo => {
                mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap()
            }
            Plant::Socket => drop(UnixListener::bind(&path).unwrap()),
            Plant::Above | Plant::AboveNothing => {}
        }
        lchown(&path, Some(DAEMON), Some(DAEMON)).unwrap();
    }

    fn run(self) {
        let dir = Dir::new();
        let outside = outside(&dir);
        theirs(&dir, "theirs");
        theirs(&dir, "theirs/sub");
        let before = state(&outside);
        let port = free_port();
        if self.moment == Moment::Start {
            self.plant(&dir, &outside);
        }
        let file =
            dir.write("nginx.conf", self.conf(dir.path(), port, self.moment != Moment::Reload));
        let mut command = Command::new(WEIR);
        command.arg("-p").arg(dir.path()).arg("-c").arg(&file).arg("-e").arg(dir.file("error.log"));
        let mut server = Process::start(command.stderr(Stdio::null()));
        let said = |text: &str| dir.read("error.log").contains(text);
        let up = || said("start worker process ");
        assert!(ask_until(|| up() || !server.is_running()), "it hangs at its start: {self:?}");
        if self.moment != Moment::Start {
            self.plant(&dir, &outside);
            dir.write("nginx.conf", self.conf(dir.path(), port, true));
            let reload = self.moment == Moment::Reload;
            server.signal(if reload { Signal::HUP } else { Signal::USR1 });
            let begun = if reload { "reconfiguring" } else { "reopening logs" };
            assert!(until(dir.path(), || said(begun)), "{self:?}");
        }
        server.signal(Signal::QUIT);
        server.wait();
        assert_eq!(state(&outside), before, "{self:?}:\n{}", dir.read("error.log"));
        let (log, master) = (dir.read("error.log"), format!(" {0}#{0}: ", server.pid()));
        let refused = |line: &str| {
            line.contains(&master) && line.contains("theirs/sub") && line.contains("failed")
        };
        assert!(log.lines().any(refused), "nothing is said of {self:?}:\n{log}");
    }
}

#[test]
fn nothing_that_others_plant_leads_the_master_elsewhere() {
    if !is_root() {
        return;
    }
    let mut dice = Dice::salted(seed(), "plants");
    for _ in 0..number("WEIR_CASES").unwrap_or(30) {
        let case = Case::draw(&mut dice);
        println!("{case:?}");
        case.run();
    }
}

/// Has a server make something in a directory of another user, who replaces it with a file of
/// root's at once. Returns the owner and mode that this file gets.
fn swapped(call: &str, line: &str, root_s: &str) -> Option<(u32, u32)> {
    let dir = Dir::new();
    let theirs = theirs(&dir, "theirs");
    let mut command = strace(&dir, call, "delay_exit=300000")?;
    fs::create_dir(theirs.join("directory")).unwrap();
    fs::write(theirs.join("directory/file"), "secret").unwrap();
    fs::set_permissions(theirs.join("directory"), Permissions::from_mode(0o700)).unwrap();
    let _listens = UnixListener::bind(theirs.join("socket")).unwrap();
    fs::set_permissions(theirs.join("socket"), Permissions::from_mode(0o600)).unwrap();
    let line = line.replace("PATH", theirs.join("made").to_str().unwrap());
    let conf = format!(
        "daemon off; user daemon; pid {0}/pid; error_log {0}/error.log notice; events {{ }}
         http {{ access_log off; {line} }}",
        dir.path().display()
    );
    let file = dir.write("nginx.conf", conf);
    let mut server = Process::start(command.arg("-c").arg(&file));
    assert!(ask_until(|| theirs.join("made").exists()));
    fs::rename(theirs.join("made"), theirs.join("away")).unwrap();
    fs::rename(theirs.join(root_s), theirs.join("made")).unwrap();
    let goes_on = || dir.read("error.log").contains("start worker process ");
    assert!(ask_until(|| goes_on() || !server.is_running()));
    let found = fs::symlink_metadata(theirs.join("made")).unwrap();
    Some((found.uid(), found.mode() & 0o7777))
}

/// A user who may change a directory can replace what root makes there as soon as it is made.
#[test]
fn what_is_swapped_as_soon_as_it_is_made_keeps_its_owner_and_mode() {
    if !is_root() {
        return;
    }
    let Some(directory) = swapped("mkdirat", "client_body_temp_path PATH;", "directory") else {
        return;
    };
    assert_eq!(directory, (0, 0o700));
    assert_eq!(swapped("bind", "server { listen unix:PATH; }", "socket"), Some((0, 0o600)));
}
