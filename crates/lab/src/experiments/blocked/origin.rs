//! The origin behind the cache. Its objects have known sizes and never change.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The least and the greatest size of an object.
const SIZES: (f64, f64) = (4.0 * 1024.0, 60.0 * 1024.0);

/// A running origin. It ends when this is dropped.
pub(crate) struct Origin {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl Origin {
    /// Starts an origin.
    pub(crate) fn start() -> std::io::Result<Origin> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let origin = Origin { address: listener.local_addr()?, stopped: Arc::default() };
        let stopped = Arc::clone(&origin.stopped);
        let bytes: Arc<[u8]> = (0..SIZES.1 as u32).map(|n| ((n * 31) >> 3) as u8).collect();
        std::thread::Builder::new().name("origin".to_owned()).spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let bytes = Arc::clone(&bytes);
                // If no thread can be started, the connection closes, and the cache reports that.
                let _ = std::thread::Builder::new().spawn(move || serve(&stream, &bytes));
            }
        })?;
        Ok(origin)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the thread from accept().
        let _ = TcpStream::connect(self.address);
    }
}

/// Answers requests until the client closes.
fn serve(stream: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut known = false;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            known |= line.to_ascii_lowercase().starts_with("if-");
            if line.trim().is_empty() {
                break;
            }
        }
        let validators = "ETag: \"1\"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n";
        let answer = if known {
            format!("HTTP/1.1 304 Not Modified\r\n{validators}\r\n").into_bytes()
        } else {
            let body = bytes.get(..size(&path)).unwrap_or(bytes);
            let len = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n{validators}\r\n");
            [head.as_bytes(), body].concat()
        };
        writer.write_all(&answer)?;
    }
}

/// The size of an object. Sizes are distributed logarithmically: as many are between 4 and 8 KiB as
/// between 30 and 60.
pub(crate) fn size(path: &str) -> usize {
    let sum = path.bytes().fold(0u32, |sum, b| (sum ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let place = f64::from(sum >> 8) / f64::from(1u32 << 24);
    (SIZES.0 * (SIZES.1 / SIZES.0).powf(place)) as usize
}
