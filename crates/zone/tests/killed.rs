//! A process that is killed while it holds a zone leaves it to the others. This test has no
//! harness, since a process that forks must have one thread.

use std::io::{Read, Write};

use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
use weir_sys::process::{Fork, fork};
use weir_zone::{Use, Zone};

fn main() {
    let purpose = Use::of("trial", 1);
    let zone = Zone::new("trial", 65536, purpose).expect("a zone");
    zone.lock().add(b"parent").expect("room");

    let (from_child, to_parent) = rustix::pipe::pipe().expect("a pipe");
    match fork().expect("a child") {
        Fork::Child => {
            drop(from_child);
            let mut table = zone.lock();
            let entry = table.add(b"child").expect("room");
            table.set_values(entry, [7]);
            std::fs::File::from(to_parent).write_all(b"x").expect("telling the parent");
            loop {
                // Holds the lock until it is killed.
                rustix::thread::sched_yield();
            }
        }
        Fork::Parent(child) => {
            drop(to_parent);
            let mut byte = [0];
            std::fs::File::from(from_child).read_exact(&mut byte).expect("a word of the child");
            kill_process(child, Signal::KILL).expect("killing the child");
            // The child is still a zombie, which holds no lock either.
            let mut table = zone.lock();
            assert!(table.find(b"parent").is_some());
            let entry = table.find(b"child").expect("what the child had finished");
            assert_eq!(table.value(entry, 0), 7);
            table.remove(entry);
            assert_eq!(table.len(), 1);
            waitpid(Some(child), WaitOptions::empty()).expect("the child's end");
            println!("a killed holder: ok");
        }
    }
}
