use super::*;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("weir-store-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn place(&self) -> CacheDirectory {
        CacheDirectory { directory: self.0.clone(), levels: vec![1, 2] }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn store(place: &CacheDirectory, text: &[u8], body: &[u8]) -> (CacheKey, CacheEntry) {
    let entry = CacheEntry {
        status: 200,
        key: text.to_vec(),
        head: b"HTTP".to_vec(),
        ..CacheEntry::default()
    };
    let key = CacheKey::of(text);
    let growing = TemporaryFile::create(&place.directory, &key, &FilePool::new(1, 10)).unwrap();
    growing.file.write_all_at(body, entry.size() as u64).unwrap();
    growing.publish(&entry.encode(body.len() as u64), &place.path(&key)).unwrap();
    (key, entry)
}

fn files(place: &CacheDirectory) -> Vec<Option<CacheKey>> {
    let mut all = Vec::new();
    walk(&place.directory, &mut |named| {
        all.push(named.key);
        true
    })
    .unwrap();
    all
}

#[test]
fn a_file_has_its_name_only_when_it_is_whole() {
    let dir = Dir::new("whole");
    let place = dir.place();
    let growing =
        TemporaryFile::create(&place.directory, &CacheKey::of(b"a"), &FilePool::new(1, 10))
            .unwrap();
    growing.file.write_all_at(b"body", 100).unwrap();
    assert_eq!(files(&place), [None]);
    drop(growing);
    while !files(&place).is_empty() {
        // A thread of the pool removes it.
        std::thread::yield_now();
    }
    let (key, entry) = store(&place, b"a", b"body");
    assert_eq!(files(&place), [Some(key)]);
    let bytes = std::fs::read(place.path(&key)).unwrap();
    let stored = CacheEntry::decode(&bytes).unwrap();
    assert_eq!((stored.entry, stored.length), (entry, 4));
    assert_eq!(&bytes[stored.body as usize..], b"body");
}

#[test]
fn new_times_are_written_only_if_it_is_the_same_answer_s() {
    let dir = Dir::new("rewrite");
    let place = dir.place();
    let (key, mut entry) = store(&place, b"a", b"body");
    let path = place.path(&key);
    let stored = |entry: &CacheEntry, length| {
        let body = entry.size() as u64;
        Stored { entry: entry.clone(), body, length }
    };
    for valid_until in [77, 78, 79] {
        entry.times.valid_until = valid_until;
        rewrite(&path, &stored(&entry, 4)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(CacheEntry::decode(&bytes).unwrap(), stored(&entry, 4));
        assert!(bytes.ends_with(b"body"));
    }
    assert!(rewrite(&path, &stored(&entry, 5)).is_err());
    entry.head = b"PTTH".to_vec();
    assert!(rewrite(&path, &stored(&entry, 4)).is_err());
}

#[test]
fn a_file_takes_its_blocks_and_at_least_its_length() {
    let dir = Dir::new("blocks");
    let (short, sparse) = (dir.0.join("short"), dir.0.join("sparse"));
    std::fs::write(&short, b"hello").unwrap();
    let info = std::fs::metadata(&short).unwrap();
    assert_eq!(size_on_disk(&info), info.blocks() * 512);
    // As on a file system that compresses.
    File::create(&sparse).unwrap().set_len(100_001).unwrap();
    let info = std::fs::metadata(&sparse).unwrap();
    assert_eq!((info.blocks(), size_on_disk(&info)), (0, 102_400));
    assert_eq!(whole_blocks(u64::MAX), u64::MAX);
}
