//! Searches a file for the parts to send. Reads from the disk, so it runs on a thread of the pool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use weir_proto::mp4::{self, Cut, FileLayout, Problem, TimeSpan};

/// The maximum size of `ftyp`.
const LARGEST_FTYP: u64 = 1024;

/// The part of a file to send, or why there is none.
pub enum Mp4Selection {
    /// The file as it is.
    Whole,
    /// `ftyp`, then the cut `moov` and `mdat`.
    Part(Vec<u8>, Cut),
    /// The file is not valid.
    Problem(Problem),
    /// The file cannot be read.
    Failed(io::Error),
}

enum Mp4Stop {
    Whole,
    Problem(Problem),
    Failed(io::Error),
}

impl From<Problem> for Mp4Stop {
    fn from(problem: Problem) -> Mp4Stop {
        Mp4Stop::Problem(problem)
    }
}

impl From<io::Error> for Mp4Stop {
    fn from(error: io::Error) -> Mp4Stop {
        Mp4Stop::Failed(error)
    }
}

/// Finds the part of a file of the size `end`. `moov` must not be larger than `most`.
pub fn find(file: &File, end: u64, wanted: TimeSpan, most: u64) -> Mp4Selection {
    match search(file, end, wanted, most) {
        Ok((ftyp, cut)) => Mp4Selection::Part(ftyp, cut),
        Err(Mp4Stop::Whole) => Mp4Selection::Whole,
        Err(Mp4Stop::Problem(problem)) => Mp4Selection::Problem(problem),
        Err(Mp4Stop::Failed(error)) => Mp4Selection::Failed(error),
    }
}

fn search(file: &File, end: u64, wanted: TimeSpan, most: u64) -> Result<(Vec<u8>, Cut), Mp4Stop> {
    let (mut ftyp, mut moov, mut data) = (Vec::new(), None, None);
    let mut at = 0;
    while at < end && (moov.is_none() || data.is_none()) {
        let mut start = [0; 16];
        let start = &mut start[..(end - at).min(16) as usize];
        file.read_exact_at(start, at)?;
        let Some(header) = mp4::header(start, end - at)? else { break };
        let (content, next) = (at + header.len, at + header.size);
        let size = next - content;
        let duplicate = |name| Problem::In(format!("duplicate mp4 {name} atom"));
        match &header.name {
            b"ftyp" if size > LARGEST_FTYP => {
                return Err(Problem::Of(format!("mp4 ftyp atom is too large:{size}")).into());
            }
            b"ftyp" if !ftyp.is_empty() => return Err(duplicate("ftyp").into()),
            b"ftyp" => {
                ftyp.extend((size as u32 + 8).to_be_bytes());
                ftyp.extend(b"ftyp");
                ftyp.extend(read(file, content, size)?);
            }
            b"moov" if moov.is_some() => return Err(duplicate("moov").into()),
            // `moov` comes before `mdat` and all is requested, so the file is sent as it is.
            b"moov" if data.is_none() && wanted.start == 0 && wanted.length == 0 => {
                return Err(Mp4Stop::Whole);
            }
            b"moov" if size > most => {
                let more = "you may want to increase mp4_max_buffer_size";
                let text = format!("mp4 moov atom is too large:{size}, {more}");
                return Err(Problem::Of(text).into());
            }
            b"moov" => moov = Some(read(file, content, size)?),
            b"mdat" if data.is_some() => return Err(duplicate("mdat").into()),
            b"mdat" => data = Some(content..next),
            _ => {}
        }
        at = next;
    }
    let moov = moov.ok_or_else(|| Problem::In("no mp4 trak atoms were found".to_owned()))?;
    let data = data.ok_or_else(|| Problem::In("no mp4 mdat atom was found".to_owned()))?;
    let place = FileLayout { end, before: ftyp.len() as u64, data };
    Ok((ftyp, mp4::cut(&moov, &place, wanted)?))
}

fn read(file: &File, at: u64, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}
