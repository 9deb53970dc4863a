use std::fs::File;
use std::time::Duration;

use proptest::prelude::*;
use weir_engine::FileInfo;

use super::*;

fn conf(max: u64, min_uses: u64) -> OpenFiles {
    let inactive = Duration::from_secs(10);
    let valid = Duration::from_secs(5);
    OpenFiles { cache: Some(FileCache { id: 0, max, inactive }), valid, min_uses, errors: true }
}

fn opened() -> Result<Opened, FileError> {
    let file = File::open("/dev/null").unwrap();
    let info = FileInfo::of(&file).unwrap();
    Ok(Opened { file: weir_engine::FilePool::new(1, 1).hold(file), info })
}

fn after(start: Instant, secs: u64) -> Instant {
    start + Duration::from_secs(secs)
}

#[test]
fn a_file_is_cached_until_it_must_be_checked_again() {
    let (conf, start, mut caches) = (conf(2, 1), Instant::now(), Caches::default());
    caches.put(&conf, b"/a", &opened(), start);
    assert!(caches.get(&conf, b"/a", after(start, 4)).is_some());
    assert!(caches.get(&conf, b"/a", after(start, 5)).is_none());
    assert!(caches.get(&conf, b"/b", start).is_none());
}

#[test]
fn rare_files_do_not_stay_open() {
    let (conf, now, mut caches) = (conf(2, 2), Instant::now(), Caches::default());
    caches.put(&conf, b"/a", &opened(), now);
    assert!(caches.get(&conf, b"/a", now).is_none());
    caches.put(&conf, b"/a", &opened(), now);
    assert!(caches.get(&conf, b"/a", now).is_some());
}

#[test]
fn failures_are_cached_only_with_open_file_cache_errors() {
    let (mut conf, now, mut caches) = (conf(2, 1), Instant::now(), Caches::default());
    let failed = Err(FileError { errno: rustix::io::Errno::NOENT, call: "open()" });
    caches.put(&conf, b"/a", &failed, now);
    assert!(matches!(caches.get(&conf, b"/a", now), Some(Err(_))));
    conf.errors = false;
    caches.put(&conf, b"/a", &failed, now);
    assert!(caches.get(&conf, b"/a", now).is_none());
}

#[test]
fn unused_files_go_first() {
    let (conf, start, mut caches) = (conf(2, 1), Instant::now(), Caches::default());
    caches.put(&conf, b"/a", &opened(), start);
    caches.put(&conf, b"/b", &opened(), start);
    caches.get(&conf, b"/a", start);
    caches.put(&conf, b"/c", &opened(), start);
    assert!(caches.get(&conf, b"/b", start).is_none());
    assert!(caches.get(&conf, b"/a", start).is_some());
    caches.put(&conf, b"/d", &opened(), after(start, 11));
    assert_eq!(caches.0[0].index.len(), 1);
}

proptest! {
    #[test]
    fn the_cache_holds_the_most_recent(
        max in 1u64..5,
        steps in prop::collection::vec((0u8..8, any::<bool>()), 0..60),
    ) {
        let (conf, now, mut caches) = (conf(max, 1), Instant::now(), Caches::default());
        let mut model: Vec<u8> = Vec::new();
        let file = opened();
        for (path, put) in steps {
            let known = model.contains(&path);
            if put {
                caches.put(&conf, &[path], &file, now);
            } else {
                prop_assert_eq!(caches.get(&conf, &[path], now).is_some(), known);
            }
            if (put && !known) || (!put && known) {
                model.retain(|p| *p != path);
                model.push(path);
            }
            if model.len() as u64 > max {
                model.remove(0);
            }
        }
    }
}
