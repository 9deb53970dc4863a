//! `image_filter`, with `image_filter_buffer`, `image_filter_jpeg_quality` and `image_filter_sharpen`.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use weir_testkit::{Dir, Server};

use crate::{example, refused, server_in};

/// A picture with a head that says its size; it has as many bytes as it says if `whole`.
fn png(width: u32, height: u32, whole: bool) -> Vec<u8> {
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8], data: &[u8]| {
        let mut crc = Crc::new();
        crc.update(kind);
        crc.update(data);
        out.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
        out.extend_from_slice(kind);
        out.extend_from_slice(data);
        out.extend_from_slice(&crc.sum().to_be_bytes());
    };
    let mut head = [width.to_be_bytes(), height.to_be_bytes()].concat();
    head.extend_from_slice(&[8, 2, 0, 0, 0]);
    chunk(b"IHDR", &head);
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::fast());
    for y in 0..if whole { height } else { 1 } {
        pixels.write_all(&[0]).unwrap();
        (0..width).for_each(|x| pixels.write_all(&[x as u8, y as u8, 99]).unwrap());
    }
    chunk(b"IDAT", &pixels.finish().unwrap());
    chunk(b"IEND", b"");
    out
}

fn with_pictures() -> Dir {
    let dir = Dir::new();
    dir.write("p.png", png(40, 20, true));
    dir.write("huge.png", png(60_000, 60_000, false));
    dir.write("broken.png", &png(40, 20, true)[..60]);
    dir.write("text", "no picture here");
    dir
}

/// `/size/x` says what size the picture `/x` has.
fn server(locations: &str) -> Server {
    let locations = format!(
        "error_log %%DIR%%/error.log; types {{ image/png png; }}
         location /size/ {{ proxy_pass http://127.0.0.1:%%PORT%%/; image_filter size; }} {locations}"
    );
    server_in(with_pictures(), "", &locations)
}

fn size(server: &Server, path: &str) -> String {
    server.get(&format!("/size{path}")).body().trim_end().to_owned()
}

fn said(width: u32, height: u32) -> String {
    format!("{{ \"img\" : {{ \"width\": {width}, \"height\": {height}, \"type\": \"png\" }} }}")
}

#[test]
fn a_description_has_no_headers_of_its_picture() {
    let server = server("location = /p.png { add_header X-Of picture; }");
    let picture = server.get("/p.png");
    for name in ["etag", "last-modified", "x-of"] {
        assert!(picture.header(name).is_some(), "{name}");
        assert_eq!(server.get("/size/p.png").header(name), None, "{name}");
    }
    assert_eq!(size(&server, "/p.png"), said(40, 20));
}

#[test]
fn pictures_become_smaller_and_are_turned_and_cut() {
    let s = server(
        "location /h/ { alias %%DIR%%/; image_filter resize 20 $arg_h; }
         location /turned/ { alias %%DIR%%/; image_filter resize 20 10; image_filter rotate 90; }
         location /only/ { alias %%DIR%%/; image_filter rotate $arg_a; }
         location /cut/ { alias %%DIR%%/; image_filter crop $arg_w 10; }
         location /as/ { alias %%DIR%%/; image_filter resize 40 20; }",
    );
    // As nginx answers.
    for (path, expected) in [
        ("/p.png", (40, 20)),
        ("/h/p.png?h=5", (10, 5)),
        ("/h/p.png?h=-", (20, 10)),
        ("/h/p.png?h=99999999999", (20, 10)),
        ("/turned/p.png", (10, 20)),
        ("/only/p.png?a=180", (40, 20)),
        ("/only/p.png?a=270", (20, 40)),
        ("/cut/p.png?w=10", (10, 10)),
        ("/cut/p.png?w=30", (30, 10)),
        ("/cut/p.png?w=-", (40, 10)),
        ("/cut/p.png?w=400", (40, 10)),
    ] {
        assert_eq!(size(&s, path), said(expected.0, expected.1), "{path}");
    }
    assert_eq!(size(&s, "/text"), "{}");
    assert_eq!(size(&s, "/none"), "{}");
    for path in [
        "/h/p.png",
        "/h/p.png?h=x",
        "/only/p.png?a=45",
        "/h/text?h=5",
        "/h/none?h=5",
        "/h/broken.png?h=5",
    ] {
        assert_eq!(s.get(path).status, 415, "{path}");
    }
    let same = s.get("/as/p.png");
    assert!(same.bytes == png(40, 20, true));
    assert!(same.header("ETag").is_some_and(|etag| !etag.starts_with("W/")));
    let other = s.get("/h/p.png?h=5");
    assert_eq!(other.header("Content-Type"), Some("image/png"));
    assert!(other.header("ETag").is_some_and(|etag| etag.starts_with("W/")));
    assert_eq!(other.header("Accept-Ranges"), None);
    let mut client = s.connect();
    client.send("HEAD /h/p.png?h=5 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let head = client.rest();
    assert!(head.contains(&format!("Content-Length: {}\r\n", other.bytes.len())), "{head}");
    let etag = format!("If-None-Match: {}\r\n", other.header("ETag").unwrap());
    assert_eq!(s.ask("GET /h/p.png?h=5", &etag, "").status, 304);
}

/// As nginx answers.
#[test]
fn answers_of_other_phases_are_no_pictures_and_pages_of_other_locations_pass() {
    let s = server(
        "location /text { image_filter resize 9 9; return 200 text; }
         location /gone { image_filter test; return 410; }
         location /moved { image_filter crop 9 9; return 301 /x; }
         location /denied { image_filter rotate 90; deny all; }
         location /told { image_filter size; deny all; }
         location /same { image_filter test; return 304; }
         location /said { image_filter test; return 404 text; error_page 415 /page; }
         location /page { return 200 \"the page\"; }
         location /files/ { alias %%DIR%%/; image_filter test; error_page 404 /page; }
         location /named/ { alias %%DIR%%/; image_filter resize 9 9; error_page 404 = @named; }
         location @named { return 200 named; }",
    );
    for path in ["/text", "/gone", "/moved", "/denied"] {
        let answer = s.get(path);
        assert_eq!((answer.status, answer.header("Location")), (415, None), "{path}");
        assert!(answer.body().contains("415 Unsupported Media Type"), "{path}");
    }
    assert_eq!((s.get("/told").status, s.get("/told").body().as_str()), (200, "{}\r\n"));
    assert_eq!(s.get("/same").status, 304);
    for (path, status, body) in [
        ("/said", 415, "the page"),
        ("/files/none", 404, "the page"),
        ("/files/text", 415, "415"),
        ("/named/none", 200, "named"),
    ] {
        let answer = s.get(path);
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body().contains(body), "{path}: {}", answer.body());
    }
}

#[test]
fn pictures_are_as_good_and_as_sharp_as_is_said() {
    let s = server(
        "location /q/ { alias %%DIR%%/; image_filter resize 30 30; image_filter_jpeg_quality $arg_q; }
         location /s/ { alias %%DIR%%/; image_filter resize 30 30; image_filter_sharpen $arg_s; }
         location /turned/ { alias %%DIR%%/; image_filter rotate 180; image_filter_sharpen $arg_s; }",
    );
    let jpeg = s.dir().file("p.jpg");
    image::load_from_memory(&png(40, 20, true)).unwrap().save(jpeg).unwrap();
    let length = |path: &str| s.get(path).bytes.len();
    assert!(length("/q/p.jpg?q=90") > length("/q/p.jpg?q=10"));
    assert_eq!(length("/q/p.jpg?q=1000"), length("/q/p.jpg?q=100"));
    assert_eq!(s.get("/q/p.jpg?q=90").header("Content-Type"), Some("image/jpeg"));
    // The quality counts where a JPEG picture is written.
    for (path, status) in
        [("/q/p.jpg", 415), ("/q/p.jpg?q=0", 415), ("/q/p.png", 200), ("/s/p.jpg?q=x", 200)]
    {
        assert_eq!(s.get(path).status, status, "{path}");
    }
    let plain = s.get("/s/p.png").bytes;
    let sharp = ["/s/p.png?s=100", "/s/p.png?s=200"].map(|path| s.get(path).bytes);
    assert!(sharp[0] != plain && sharp[1] != plain && sharp[0] != sharp[1]);
    assert!(s.get("/s/p.png?s=x").bytes == plain);
    // A picture that keeps its size is sharpened, too, if it is written.
    assert!(s.get("/turned/p.png?s=100").bytes != s.get("/turned/p.png").bytes);
}

/// As nginx answers.
#[test]
fn an_angle_beside_a_size_may_be_none() {
    let s = server(
        "location /r/ { alias %%DIR%%/; image_filter resize 20 20; image_filter rotate $arg_a; }
         location /c/ { alias %%DIR%%/; image_filter crop 10 20; image_filter rotate $arg_a; }
         location /only/ { alias %%DIR%%/; image_filter size; image_filter rotate $arg_a; }",
    );
    for angle in ["", "0", "45", "x"] {
        assert_eq!(size(&s, &format!("/r/p.png?a={angle}")), said(20, 10), "{angle}");
        assert_eq!(size(&s, &format!("/c/p.png?a={angle}")), said(10, 20), "{angle}");
        assert_eq!(s.get(&format!("/only/p.png?a={angle}")).status, 415, "{angle}");
    }
    assert_eq!(size(&s, "/r/p.png?a=90"), said(10, 20));
    assert_eq!(size(&s, "/only/p.png?a=90"), said(20, 40));
}

/// As with nginx: EXIF and its like are not sent where they are a large part of a picture.
#[test]
fn a_picture_that_fits_loses_much_metadata() {
    let s = server("location /as/ { alias %%DIR%%/; image_filter resize 40 20; }");
    let path = s.dir().file("p.jpg");
    image::load_from_memory(&png(40, 20, true)).unwrap().save(&path).unwrap();
    let little = std::fs::read(&path).unwrap();
    let metadata = [&[0xff, 0xe1, 0x10, 0x00][..], &[b'm'; 0x0ffe]].concat();
    let much = [&little[..2], &metadata, &little[2..]].concat();
    s.dir().write("much.jpg", &much);
    assert!(s.get("/as/p.jpg").bytes == little);
    let answer = s.get("/as/much.jpg");
    assert_eq!(answer.header("Content-Type"), Some("image/jpeg"));
    assert!(!answer.bytes.windows(9).any(|bytes| bytes == b"mmmmmmmmm"));
    let picture = image::load_from_memory(&answer.bytes).unwrap();
    assert_eq!((picture.width(), picture.height()), (40, 20));
}

#[test]
fn only_pictures_pass_a_test_and_only_those_within_bounds_are_changed() {
    let s = server(
        "add_header X-Once 1 always;
         location /test/ { proxy_pass http://127.0.0.1:%%PORT%%/; image_filter test; add_header X-Behind $upstream_status always; add_header X-Once 1 always; }
         location /small/ { alias %%DIR%%/; image_filter resize 20 10; image_filter_buffer 20; }
         location /change/ { alias %%DIR%%/; image_filter resize 20 10; error_page 415 = /text; }
         location /off/ { alias %%DIR%%/; image_filter off; }",
    );
    let passed = s.get("/test/p.png");
    assert!(passed.bytes == png(40, 20, true));
    let once = passed.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-once"));
    assert_eq!(once.count(), 2, "the server behind's and weir's own");
    assert_eq!(passed.header("X-Behind"), Some("200"));
    assert_eq!(s.get("/test/text").status, 415);
    assert_eq!(s.get("/off/text").body(), "no picture here");
    assert_eq!(s.get("/small/p.png").status, 415);
    // A picture of few bytes that would have gigabytes.
    assert_eq!(s.get("/change/huge.png").body(), "no picture here");
    s.wait_log("too many pixels: 60000 x 60000", 1);
    assert_eq!(size(&s, "/huge.png"), said(60_000, 60_000));
}

#[test]
fn what_is_wrong_with_it_is_said() {
    for (line, text) in [
        ("image_filter resize 10;", "invalid parameter \"resize\""),
        ("image_filter resize 10 0;", "invalid parameter \"0\""),
        ("image_filter rotate 45;", "invalid parameter \"45\""),
        ("image_filter squeeze;", "invalid parameter \"squeeze\""),
        ("image_filter_jpeg_quality 0;", "invalid value \"0\""),
        ("image_filter_sharpen -;", "invalid value \"-\""),
    ] {
        let said = refused(&format!("server {{ location / {{ {line} }} }}"));
        assert!(said.contains(text), "{line}: {said}");
    }
    // Other values are valid, as for nginx.
    server(
        "location /x/ { image_filter resize 99999999999 -; image_filter_jpeg_quality 101; image_filter_sharpen 150; }
         location /y/ { image_filter rotate 090; image_filter_sharpen 0; }",
    );
}

#[test]
fn the_pages_example_makes_thumbnails() {
    let lines = example("image_filter\n").replace("/srv/pictures", "%%DIR%%");
    let s = server(&lines);
    assert_eq!(size(&s, "/thumbnails/20x20/p.png"), said(20, 10));
    assert_eq!(s.get("/thumbnails/20x20/text").status, 404);
}
