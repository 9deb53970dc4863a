use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::delays::Faults;
use super::tree::InodeNumbers;
use super::*;

fn delays(share: Share, time: Spread) -> Delays {
    Delays { operations: vec![Operation::Open, Operation::Rename], share, time, seed: 7 }
}

#[test]
fn shares_and_times_are_read() {
    assert_eq!("1/500".parse(), Ok(Share::one_in(500)));
    assert_eq!("0.002".parse(), Ok(Share::one_in(500)));
    for wrong in ["", "1/0", "2", "-1/2", "x", "nan"] {
        assert!(wrong.parse::<Share>().is_err(), "{wrong}");
    }
    let ms = Duration::from_millis;
    assert_eq!("100ms".parse(), Ok(Spread::Fixed(ms(100))));
    assert_eq!("0.1s".parse(), Ok(Spread::Fixed(ms(100))));
    assert_eq!("50ms..2s".parse(), Ok(Spread::Uniform(ms(50), ms(2000))));
    assert_eq!("exp:1500us".parse(), Ok(Spread::Exponential(Duration::from_micros(1500))));
    for wrong in ["", "ms", "1", "1h", "2s..1s", "exp:", "-1s"] {
        assert!(wrong.parse::<Spread>().is_err(), "{wrong}");
    }
}

#[test]
fn a_seed_chooses_the_same_operations_again() {
    let draw = |seed| {
        let time = Spread::Exponential(Duration::from_millis(10));
        let faults = Faults::new(Delays { seed, ..delays(Share::one_in(10), time) });
        (0..1000).map(|_| faults.draw(Operation::Open)).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn the_share_of_slow_operations_is_kept() {
    let faults = Faults::new(delays(Share::one_in(20), Spread::Fixed(Duration::from_secs(1))));
    for _ in 0..20_000 {
        faults.draw(Operation::Open);
        assert_eq!(faults.draw(Operation::Read), None);
    }
    let (delayed, drawn) = faults.counts();
    assert_eq!(drawn, 20_000);
    assert!((800..1200).contains(&delayed), "{delayed}");
    faults.set_slow(false);
    assert!((0..1000).all(|_| faults.draw(Operation::Open).is_none()));
}

proptest! {
    #[test]
    fn times_keep_to_their_bounds(least in 0u64..1000, more in 0u64..1000, seed: u64) {
        let (least, most) = (Duration::from_millis(least), Duration::from_millis(least + more));
        let spread = Spread::Uniform(least, most);
        let faults = Faults::new(Delays { seed, ..delays(Share::one_in(1), spread) });
        for _ in 0..50 {
            let time = faults.draw(Operation::Rename).unwrap();
            prop_assert!((least..=most).contains(&time));
        }
    }

    /// Names are created, removed and renamed in any order. Each name has one number, and each
    /// number one name.
    #[test]
    fn numbers_and_names_agree(steps in prop::collection::vec((0u8..3, 0u8..6, 0u8..6), 0..60)) {
        let mut tree = InodeNumbers::new("/top".into());
        let mut model = std::collections::HashMap::new();
        for (what, a, b) in steps {
            let (from, to) = (a.to_string(), b.to_string());
            match what {
                0 => {
                    let number = tree.number(1, from.as_ref());
                    prop_assert_eq!(*model.entry(from).or_insert(number), number);
                }
                1 => {
                    tree.removed(1, from.as_ref());
                    model.remove(&from);
                }
                _ => {
                    tree.renamed((1, from.as_ref()), (1, to.as_ref()));
                    if from != to {
                        model.remove(&to);
                        if let Some(number) = model.remove(&from) {
                            model.insert(to, number);
                        }
                    }
                }
            }
            for (name, number) in &model {
                prop_assert_eq!(tree.path(*number), Some(Path::new("/top").join(name)));
            }
        }
    }
}

#[test]
fn a_directory_takes_its_files_along() {
    let mut tree = InodeNumbers::new("/top".into());
    let directory = tree.number(1, "a".as_ref());
    let file = tree.number(directory, "b".as_ref());
    tree.renamed((1, "a".as_ref()), (1, "c".as_ref()));
    assert_eq!(tree.path(file), Some("/top/c/b".into()));
    tree.removed(1, "c".as_ref());
    assert_eq!(tree.path(file), None);
}

/// A temporary directory with a mounted disk. `None` and a message if this machine does not permit
/// mounts.
fn mounted(name: &str, delays: Delays) -> Option<(PathBuf, SlowDisk)> {
    let dir = std::env::temp_dir().join(format!("weir-slow-{name}-{}", std::process::id()));
    fs::create_dir_all(dir.join("source")).unwrap();
    fs::create_dir_all(dir.join("mount")).unwrap();
    match SlowDisk::mount(&dir.join("source"), &dir.join("mount"), delays) {
        Ok(disk) => Some((dir, disk)),
        Err(e) => {
            eprintln!("skipped, since FUSE cannot be mounted: {e}");
            fs::remove_dir_all(&dir).unwrap();
            None
        }
    }
}

#[test]
fn operations_at_the_mount_change_the_directory() {
    let never = Delays {
        operations: Vec::new(),
        ..delays(Share::one_in(1), Spread::Fixed(Duration::ZERO))
    };
    let Some((dir, disk)) = mounted("all", never) else { return };
    let (source, mount) = (dir.join("source"), dir.join("mount"));
    fs::create_dir_all(mount.join("a/b")).unwrap();
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.join("a/b/x"))
        .unwrap();
    file.write_all(&[7; 300_000]).unwrap();
    fs::rename(mount.join("a/b/x"), mount.join("a/y")).unwrap();
    assert_eq!(fs::read(source.join("a/y")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::read(mount.join("a/y")).unwrap(), vec![7; 300_000]);
    file.set_len(5).unwrap();
    assert_eq!(fs::metadata(mount.join("a/y")).unwrap().len(), 5);
    fs::remove_file(mount.join("a/y")).unwrap();
    let mut rest = Vec::new();
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; 5], 0).unwrap();
    assert_eq!(file.read_to_end(&mut rest).unwrap(), 0);
    let names: Vec<_> =
        fs::read_dir(mount.join("a")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["b"]);
    assert_eq!(fs::read(mount.join("a/y")).unwrap_err().kind(), io::ErrorKind::NotFound);
    std::os::unix::fs::symlink("b", mount.join("a/link")).unwrap();
    assert_eq!(fs::read_link(source.join("a/link")).unwrap(), Path::new("b"));
    drop(file);
    drop(disk);
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    fs::remove_dir_all(dir).unwrap();
}

/// Every open() takes a second. Thirty-two concurrent ones take about a second together, with no
/// more threads than callers.
#[test]
fn one_delay_does_not_wait_for_another() {
    let second = Duration::from_secs(1);
    let Some((dir, disk)) = mounted("beside", delays(Share::one_in(1), Spread::Fixed(second)))
    else {
        return;
    };
    for n in 0..32 {
        fs::write(dir.join(format!("source/{n}")), "x").unwrap();
    }
    let began = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..32 {
            let file = dir.join(format!("mount/{n}"));
            scope.spawn(move || assert_eq!(fs::read(file).unwrap(), b"x"));
        }
    });
    assert_eq!(disk.counts(), (32, 32));
    let took = began.elapsed();
    assert!(took >= second && took < second * 16, "{took:?}");
    drop(disk);
    fs::remove_dir_all(dir).unwrap();
}
