//! The server behind both: it answers with what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Listens for as long as the process lives; the address, as configurations name it.
pub fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the server behind");
    let address = listener.local_addr().expect("its address").to_string();
    let own = address.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let own = own.clone();
            thread::spawn(move || drop(serve(stream, &own)));
        }
    });
    address
}

fn serve(stream: TcpStream, own: &str) -> std::io::Result<()> {
    // A request whose body does not come is a difference that shows as a 502.
    stream.set_read_timeout(Some(std::time::Duration::from_secs(1)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some((head, length)) = head(&mut reader)? {
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let heard = format!("{head}\n{}\n", String::from_utf8_lossy(&body));
        stream.write_all(answer(&head, &heard, own).as_bytes())?;
        if !head.contains("HTTP/1.1") || head.contains("Connection: close") {
            break;
        }
    }
    Ok(())
}

/// A head with its lines, and how long the body behind it is.
fn head(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<(String, usize)>> {
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(Some((head, length)));
        }
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.parse().unwrap_or(0);
        }
        head += line;
        head.push('\n');
    }
}

fn answer(head: &str, heard: &str, own: &str) -> String {
    let (status, more) = if head.contains("up=404") {
        ("404 Not Found", String::new())
    } else if head.contains("up=500") {
        ("500 Odd Words", String::new())
    } else if head.contains("up=move") {
        ("302 Found", format!("Location: http://{own}/up/there?x\r\n"))
    } else if head.contains("up=accel") {
        ("200 OK", "X-Accel-Redirect: /p/b.txt?from=up\r\n".to_owned())
    } else if head.contains("up=304") {
        ("304 Not Modified", "ETag: \"up\"\r\n".to_owned())
    } else if head.contains("up=odd") {
        let lines = "X-Accel-Charset: koi8-r\r\nX-Accel-Buffering: no\r\nVary: Cookie\r\n\
            Refresh: 5; url=/up/next\r\nCache-Control: max-age=5\r\nCache-Control: private\r\n";
        ("203 Other", lines.to_owned())
    } else {
        ("200 OK", "Last-Modified: Sun, 13 Sep 2020 12:26:40 GMT\r\n".to_owned())
    };
    let none = head.starts_with("HEAD ") || status.starts_with("304");
    let length = heard.len();
    let body = if none { "" } else { heard };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nX-Up: yes\r\n\
         Set-Cookie: a=b; Path=/up/; Domain=up.example\r\nServer: behind\r\n{more}\r\n{body}"
    )
}
