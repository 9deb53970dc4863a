use super::origin::{Origin, size};
use super::waits::Buckets;

use std::io::{Read, Write};
use std::net::TcpStream;

#[test]
fn objects_are_of_four_to_sixty_kibibytes() {
    let sizes: Vec<usize> = (0..10_000).map(|n| size(&format!("/o/{n}"))).collect();
    assert!(sizes.iter().all(|size| (4096..=61440).contains(size)));
    let small = sizes.iter().filter(|size| **size < 8192).count();
    let large = sizes.iter().filter(|size| **size > 30720).count();
    assert!((2000..3200).contains(&small) && (2000..3200).contains(&large), "{small} {large}");
}

#[test]
fn the_origin_answers_and_knows_what_is_unchanged() {
    let origin = Origin::start().unwrap();
    let mut stream = TcpStream::connect(origin.address()).unwrap();
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.write_all(b"GET /a HTTP/1.1\r\nIf-None-Match: \"1\"\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Length: "), "{text}");
    assert!(text.contains("HTTP/1.1 304 Not Modified\r\n"), "{text}");
}

#[test]
fn a_status_page_s_histogram_is_read() {
    let page = |a: u32, b: u32, c: u32| {
        format!(
            "# TYPE x histogram\nx_bucket{{le=\"0.000512\"}} {a}\nx_bucket{{le=\"0.001024\"}} {b}\n\
             x_bucket{{le=\"+Inf\"}} {c}\nx_sum 1\nx_count {c}\n"
        )
    };
    let before = Buckets::read(&page(100, 100, 100), "x").unwrap();
    let after = Buckets::read(&page(198, 199, 200), "x").unwrap();
    let since = after.since(&before);
    assert_eq!(since.quantile(0.98), 0.512);
    assert_eq!(since.quantile(0.99), 1.024);
    assert_eq!(since.quantile(1.0), f64::INFINITY);
    assert_eq!(Buckets::read(&page(1, 2, 3), "y"), None);
}
