//! Files behind heads, in memory and not.

use std::io;
use std::io::{Read, Write};

use super::client;
use crate::tests::site::Site;
use crate::{BackendKind, Chain, FileWay, Patience, Segment};

const WAYS: [FileWay; 2] = [FileWay::Cheapest, FileWay::Copy];

pub(crate) fn a_file_follows_its_head(kind: BackendKind) {
    for way in WAYS {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n / 1000) as u8).collect();
        let mut file = tempfile();
        file.write_all(&bytes).unwrap();
        let mut site = Site::new(kind);
        let file = site.h.files().hold(file);
        let play = client(&site, move |mut socket| {
            let mut all = Vec::new();
            socket.read_to_end(&mut all).unwrap();
            assert_eq!(&all[..4], b"head");
            assert_eq!(&all[all.len() - 4..], b"tail");
            assert!(all[4..all.len() - 4] == bytes[10..]);
        });
        site.serve(move |_, stream| {
            let file = file.clone();
            async move {
                let mut chain = Chain::new();
                chain.set_file_chunk(100_000);
                chain.set_file_way(way);
                chain.push(&b"head"[..]);
                chain.push(Segment::File { file: file.clone(), offset: 10, len: 2_999_990 });
                chain.push(&b"tail"[..]);
                stream.send(&mut chain, Patience::Watched).await.unwrap();
                chain.push(Segment::File { file, offset: 3_000_000, len: 5 });
                let error = stream.send(&mut chain, Patience::Watched).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
        });
        play.join().unwrap();
        assert_eq!(site.h.panics(), 0);
    }
}

pub(crate) fn a_cold_file_is_read_elsewhere_and_arrives(kind: BackendKind) {
    for way in WAYS {
        let mut file = tempfile();
        let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n / 1000) as u8).collect();
        file.write_all(&bytes).unwrap();
        // Cached pages may be evicted, and for a file of /proc the kernel does not tell.
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let proc = std::fs::File::open("/proc/version").unwrap();
        let version = std::fs::read("/proc/version").unwrap();
        let whole = [&bytes[..], &version[..5]].concat();
        let mut site = Site::new(kind);
        let (file, proc) = (site.h.files().hold(file), site.h.files().hold(proc));
        let play = client(&site, move |mut socket| {
            let mut all = Vec::new();
            socket.read_to_end(&mut all).unwrap();
            assert!(all == whole);
        });
        site.serve(move |h, stream| {
            let mut chain = Chain::new();
            chain.set_file_way(way);
            chain.push(Segment::File { file: file.clone(), offset: 0, len: 1_000_000 });
            chain.push(Segment::File { file: proc.clone(), offset: 0, len: 5 });
            async move {
                stream.send(&mut chain, Patience::Watched).await.unwrap();
                assert!(h.files().offloaded() > 0);
            }
        });
        play.join().unwrap();
        assert_eq!(site.h.panics(), 0);
    }
}

/// A file without a name.
fn tempfile() -> std::fs::File {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR).unwrap().into()
}
