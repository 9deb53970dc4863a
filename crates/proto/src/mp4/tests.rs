//! A cut file read again must hold the samples of the span and nothing else.

use proptest::prelude::*;

use super::atom::atoms;
use super::track::Track;
use super::*;

const SCALE: u32 = 1000;

fn atom(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 8).to_be_bytes()[..], name, body].concat()
}

fn numbers(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|n| n.to_be_bytes()).collect()
}

/// A file of one track: samples of these durations and sizes, each chunk with so many of them. Each byte of a
/// sample's data is its number.
#[derive(Clone, Debug)]
struct Film {
    durations: Vec<u32>,
    sizes: Vec<u32>,
    chunks: Vec<u32>,
    keys: Vec<u32>,
}

impl Film {
    /// The content of `moov` and of `mdat`, which begins at `at`.
    fn build(&self, at: u32, wide: bool) -> (Vec<u8>, Vec<u8>) {
        let duration: u32 = self.durations.iter().sum();
        let (mut offsets, mut data, mut sample) = (Vec::new(), Vec::new(), 0);
        let mut stsc = Vec::new();
        for (i, count) in self.chunks.iter().enumerate() {
            offsets.push(at + data.len() as u32);
            stsc.extend([i as u32 + 1, *count, 1]);
            for _ in 0..*count {
                data.extend(vec![sample as u8; self.sizes[sample] as usize]);
                sample += 1;
            }
        }
        let stts: Vec<u32> = self.durations.iter().flat_map(|d| [1, *d]).collect();
        let ctts: Vec<u32> = (0..self.durations.len() as u32).flat_map(|n| [1, n]).collect();
        let table = |count: usize, body: &[u32]| numbers(&[&[0, count as u32], body].concat());
        let samples = self.durations.len();
        let chunk_atom = if wide {
            let offsets: Vec<u32> = offsets.iter().flat_map(|o| [0, *o]).collect();
            atom(b"co64", &table(self.chunks.len(), &offsets))
        } else {
            atom(b"stco", &table(self.chunks.len(), &offsets))
        };
        let stbl = [
            atom(b"stsd", &[0; 16]),
            atom(b"stts", &table(samples, &stts)),
            atom(b"stss", &table(self.keys.len(), &self.keys)),
            atom(b"ctts", &table(samples, &ctts)),
            atom(b"stsc", &table(self.chunks.len(), &stsc)),
            atom(b"stsz", &numbers(&[&[0, 0, samples as u32], &self.sizes[..]].concat())),
            chunk_atom,
        ]
        .concat();
        let mdhd = numbers(&[0, 0, 0, SCALE, duration, 0]);
        let minf = [atom(b"vmhd", &[0; 12]), atom(b"stbl", &stbl)].concat();
        let mdia = [atom(b"mdhd", &mdhd), atom(b"hdlr", &[0; 8]), atom(b"minf", &minf)].concat();
        let mut tkhd = vec![0; 84];
        write::put_32(&mut tkhd, 20, duration);
        let mut mvhd = vec![0; 100];
        write::put_32(&mut mvhd, 12, SCALE);
        write::put_32(&mut mvhd, 16, duration);
        let trak = [atom(b"tkhd", &tkhd), atom(b"mdia", &mdia)].concat();
        ([atom(b"mvhd", &mvhd), atom(b"trak", &trak)].concat(), data)
    }
}

/// The numbers of the samples in a cut file, in order, by way of its tables; and its track.
fn samples_of(cut: &Cut, before: u64, file: &[u8]) -> (Vec<u8>, Track) {
    let data = &file[cut.data.start as usize..cut.data.end as usize];
    let new = [&vec![0; before as usize][..], &cut.head, data].concat();
    let moov = atoms(&cut.head).next().unwrap().unwrap();
    assert_eq!(&moov.name, b"moov");
    let (_, tracks) = read(moov.body, TimeSpan::default()).unwrap();
    let track = tracks.into_iter().next().unwrap();
    let track::Sizes::Each(sizes) = &track.stsz.as_ref().unwrap().1 else { panic!() };
    let offsets = &track.chunks.as_ref().unwrap().table.entries;
    let runs = &track.stsc.as_ref().unwrap().entries;
    let (mut samples, mut next) = (Vec::new(), 0);
    for (i, offset) in offsets.iter().enumerate() {
        let run = runs.iter().rev().find(|run| run.chunk as usize <= i + 1).unwrap();
        let mut at = *offset as usize;
        for _ in 0..run.samples {
            // The last chunks of a track may be said to hold more samples than there are.
            let Some(size) = sizes.get(next).map(|size| *size as usize) else { break };
            samples.push(new[at]);
            assert!(new[at..at + size].iter().all(|b| *b == new[at]));
            (at, next) = (at + size, next + 1);
        }
    }
    assert_eq!(next, sizes.len());
    (samples, track)
}

fn films() -> impl Strategy<Value = Film> {
    let chunks = proptest::collection::vec(1u32..5, 1..8);
    chunks.prop_flat_map(|chunks| {
        let n = chunks.iter().sum::<u32>() as usize;
        let durations = proptest::collection::vec(1u32..40, n);
        let sizes = proptest::collection::vec(1u32..9, n);
        let keys = proptest::collection::btree_set(2..=n as u32 + 1, 0..4);
        (durations, sizes, keys).prop_map(move |(durations, sizes, keys)| {
            let mut all = vec![1];
            all.extend(keys.into_iter().filter(|key| *key as usize <= n));
            Film { durations, sizes, chunks: chunks.clone(), keys: all }
        })
    })
}

proptest! {
    #[test]
    fn a_part_has_the_samples_of_its_span(
        film in films(), start in 0u64..200, length in 0u64..200, wide: bool, key_frame: bool,
    ) {
        let total: u32 = film.durations.iter().sum();
        prop_assume!(start < total.into());
        let at = 500;
        let (moov, data) = film.build(at, wide);
        let file = [&vec![0xff; at as usize][..], &data].concat();
        let place = FileLayout { end: file.len() as u64, before: 24, data: u64::from(at)..file.len() as u64 };

        // Which samples are shown in the span, by adding up.
        let starts: Vec<u64> = film.durations.iter().scan(0u64, |t, d| {
            let at = *t;
            *t += u64::from(*d);
            Some(at)
        }).collect();
        let shown = starts.iter().rposition(|t| *t <= start).unwrap();
        let key = film.keys.iter().rev().map(|k| *k as usize - 1).find(|k| *k <= shown).unwrap();
        let first = if key_frame { key } else { shown };
        let prefix = starts[shown] - starts[first];
        let until = starts[first] + prefix + length;
        let end = if length == 0 { starts.len() } else {
            let last = starts.iter().rposition(|t| *t <= until).unwrap();
            let beyond = until >= u64::from(total);
            if beyond { starts.len() } else { last }
        };

        let cut = cut(&moov, &place, TimeSpan { start, length, key_frame });
        if end <= first {
            let nothing = Problem::within("no data between start time and end time");
            prop_assert_eq!(cut, Err(nothing));
            return Ok(());
        }
        let cut = cut.unwrap();
        let (samples, track) = samples_of(&cut, place.before, &file);
        let expected: Vec<u8> = (first as u8..end as u8).collect();
        prop_assert_eq!(samples, expected);
        let shown = track.stts.unwrap().entries.iter().map(|run| run.count as usize).sum::<usize>();
        prop_assert_eq!(shown, end - first);
        let keys: Vec<u32> = film.keys.iter().filter(|k| (first..end).contains(&(**k as usize - 1)))
            .map(|k| k - first as u32).collect();
        prop_assert_eq!(track.stss.unwrap().entries, keys);
        prop_assert_eq!(track.ctts.unwrap().entries.iter().map(|run| run.count as usize).sum::<usize>(), end - first);
    }

    #[test]
    fn broken_tables_are_problems(
        film in films(), at in 0usize..2000, byte: u8, start in 0u64..100, length in 0u64..100,
    ) {
        let (mut moov, data) = film.build(500, false);
        let at = at % moov.len();
        moov[at] = byte;
        let end = 500 + data.len() as u64;
        let place = FileLayout { end, before: 24, data: 500..end };
        if let Ok(cut) = cut(&moov, &place, TimeSpan { start, length, key_frame: byte % 2 == 0 }) {
            prop_assert!(cut.data.start < cut.data.end && cut.data.end <= end);
        }
    }

    #[test]
    fn any_bytes_are_decided(bytes: Vec<u8>, start: u64, length: u64) {
        let place = FileLayout { end: 100, before: 0, data: 10..100 };
        let wanted = TimeSpan { start, length, key_frame: true };
        let _ = cut(&bytes, &place, wanted);
        let trak = atom(b"trak", &atom(b"mdia", &atom(b"minf", &atom(b"stbl", &bytes))));
        let _ = cut(&trak, &place, wanted);
    }
}

#[test]
fn headers_of_atoms() {
    let long = [&[0, 0, 0, 1][..], b"mdat", &(1u64 << 33).to_be_bytes()].concat();
    let found = header(&long, u64::MAX).unwrap().unwrap();
    assert_eq!((found.len, found.size), (16, 1 << 33));
    assert_eq!(header(&[0; 8], 8), Ok(None));
    let text = |bytes: &[u8], room| header(bytes, room).unwrap_err().about("f");
    assert_eq!(text(b"\0\0\0\x07free", 99), "\"f\" mp4 atom is too small:7");
    assert_eq!(text(b"\0\0\0\x20free", 31), "\"f\" mp4 atom too large:32");
    assert_eq!(text(b"\0\0", 2), "\"f\" mp4 file truncated");
}
