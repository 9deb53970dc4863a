//! Putting atoms together again.

use super::span::CutTrack;
use super::track::{FullAtom, SampleRun, Sizes, Track};

/// Replaces a number of 32 bits, if there is one.
pub fn put_32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

/// Replaces a number of 64 bits, if there is one.
pub fn put_64(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(field) = bytes.get_mut(at..at + 8) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

/// The whole `moov`.
pub fn moov(mvhd: Option<&[u8]>, parts: &[CutTrack]) -> Vec<u8> {
    let mut out = Vec::new();
    atom(b"moov", &mut out, |out| {
        plain(b"mvhd", mvhd, out);
        for part in parts {
            atom(b"trak", out, |out| track(part, out));
        }
    });
    out
}

/// The header of an `mdat` with this much content.
pub fn mdat_header(content: u64) -> Vec<u8> {
    let mut out = Vec::new();
    match u32::try_from(content + 8) {
        Ok(size) => {
            out.extend(size.to_be_bytes());
            out.extend(b"mdat");
        }
        Err(_) => {
            out.extend([0, 0, 0, 1]);
            out.extend(b"mdat");
            out.extend((content + 16).to_be_bytes());
        }
    }
    out
}

fn track(part: &CutTrack, out: &mut Vec<u8>) {
    let track = &part.track;
    plain(b"tkhd", track.tkhd.as_deref(), out);
    if part.prefix > 0 {
        atom(b"edts", out, |out| atom(b"elst", out, |out| edit(part, out)));
    }
    atom(b"mdia", out, |out| {
        plain(b"mdhd", track.mdhd.as_deref(), out);
        plain(b"hdlr", track.hdlr.as_deref(), out);
        atom(b"minf", out, |out| {
            if let Some((name, body)) = &track.media {
                plain(name, Some(body), out);
            }
            plain(b"dinf", track.dinf.as_deref(), out);
            atom(b"stbl", out, |out| tables(track, part, out));
        });
    });
}

/// One edit: show the track from behind the prefix on, at its usual rate.
fn edit(part: &CutTrack, out: &mut Vec<u8>) {
    out.extend([1, 0, 0, 0]);
    out.extend(1u32.to_be_bytes());
    out.extend(part.track.movie_duration.to_be_bytes());
    out.extend(part.prefix.to_be_bytes());
    out.extend([0, 1, 0, 0]);
}

fn tables(track: &Track, part: &CutTrack, out: &mut Vec<u8>) {
    let run = |run: &SampleRun, out: &mut Vec<u8>| {
        out.extend(run.count.to_be_bytes());
        out.extend(run.value.to_be_bytes());
    };
    plain(b"stsd", track.stsd.as_deref(), out);
    table(b"stts", track.stts.as_ref(), out, run);
    table(b"stss", track.stss.as_ref(), out, |key, out| out.extend(key.to_be_bytes()));
    table(b"ctts", track.ctts.as_ref(), out, run);
    table(b"stsc", track.stsc.as_ref(), out, |run, out| {
        [run.chunk, run.samples, run.id].iter().for_each(|n| out.extend(n.to_be_bytes()));
    });
    if let Some((head, sizes)) = &track.stsz {
        atom(b"stsz", out, |out| {
            out.extend(head.flags);
            sample_sizes(sizes, out);
        });
    }
    let chunks = Some(&part.chunks.table);
    if part.chunks.wide {
        table(b"co64", chunks, out, |offset, out| out.extend(offset.to_be_bytes()));
    } else {
        table(b"stco", chunks, out, |offset, out| out.extend((*offset as u32).to_be_bytes()));
    }
}

fn sample_sizes(sizes: &Sizes, out: &mut Vec<u8>) {
    match sizes {
        Sizes::Uniform(size, count) => {
            out.extend(size.to_be_bytes());
            out.extend(count.to_be_bytes());
        }
        Sizes::Each(each) => {
            out.extend(0u32.to_be_bytes());
            out.extend((each.len() as u32).to_be_bytes());
            each.iter().for_each(|size| out.extend(size.to_be_bytes()));
        }
    }
}

fn table<T>(
    name: &[u8; 4],
    table: Option<&FullAtom<T>>,
    out: &mut Vec<u8>,
    mut entry: impl FnMut(&T, &mut Vec<u8>),
) {
    let Some(table) = table else { return };
    atom(name, out, |out| {
        out.extend(table.flags);
        out.extend((table.entries.len() as u32).to_be_bytes());
        table.entries.iter().for_each(|e| entry(e, out));
    });
}

fn plain(name: &[u8; 4], body: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(body) = body {
        atom(name, out, |out| out.extend_from_slice(body));
    }
}

/// An atom: its size is known when its content is written.
fn atom(name: &[u8; 4], out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend([0; 4]);
    out.extend(name);
    content(out);
    let size = (out.len() - at) as u32;
    put_32(out, at, size);
}
