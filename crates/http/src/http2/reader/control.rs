//! Frames that are about streams and the connection themselves.

use weir_engine::spend;
use weir_http2::Stream as _;
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, Setting};

use super::{CANCEL, Read, Reader, broken};

impl Reader {
    pub(super) fn priority(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let Ok((depends_on, [])) = frame::dependency(payload) else {
            let text = format!("client sent PRIORITY frame with incorrect length {}", head.len);
            return broken(ErrorCode::FrameSize, text);
        };
        self.history.priorities += 1;
        if self.history.priorities
            > 2 * self.link.v2().max_concurrent_streams.max(100) + self.history.total / 1024
        {
            return broken(ErrorCode::EnhanceYourCalm, "client sent too many PRIORITY frames");
        }
        if head.stream == 0 {
            let text = "client sent PRIORITY frame with incorrect identifier";
            return broken(ErrorCode::Protocol, text);
        }
        if depends_on == head.stream {
            let text = format!(
                "client sent PRIORITY frame for stream {} with incorrect dependency",
                head.stream
            );
            return broken(ErrorCode::Protocol, text);
        }
        Ok(())
    }

    pub(super) fn rst_stream(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let Some(code) = frame::word(payload) else {
            let text = format!("client sent RST_STREAM frame with incorrect length {}", head.len);
            return broken(ErrorCode::FrameSize, text);
        };
        if head.stream == 0 || head.stream > self.history.last {
            let text = "client sent RST_STREAM frame with incorrect identifier";
            return broken(ErrorCode::Protocol, text);
        }
        self.link.forget_reset(head.stream);
        let Some(stream) = self.link.stream(head.stream) else { return Ok(()) };
        let id = stream.id;
        match code {
            8 => self.log(format_args!("client canceled stream {id}")),
            2 => self.log(format_args!("client terminated stream {id} due to internal error")),
            _ => self.log(format_args!("client terminated stream {id} with status {code}")),
        }
        spend(CANCEL);
        stream.fail();
        self.history.cancelled += 1;
        // Work that is asked for and given up at once costs the client nothing.
        let most = 2 * self.link.v2().max_concurrent_streams.max(100);
        if self.history.cancelled > most + self.link.ledger.answers.get() {
            return broken(ErrorCode::EnhanceYourCalm, "client canceled too many streams");
        }
        Ok(())
    }

    pub(super) fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        if head.stream != 0 {
            let text = "client sent SETTINGS frame with incorrect identifier";
            return broken(ErrorCode::Protocol, text);
        }
        if head.has(frame::ACK) {
            if head.len != 0 {
                let text = "client sent SETTINGS frame with the ACK flag and nonzero length";
                return broken(ErrorCode::FrameSize, text);
            }
            self.history.acknowledged = true;
            return Ok(());
        }
        if !head.len.is_multiple_of(6) {
            let text = format!("client sent SETTINGS frame with incorrect length {}", head.len);
            return broken(ErrorCode::FrameSize, text);
        }
        let mut window = None;
        for setting in frame::settings(payload) {
            let wrong = |name: &str, value: u32| {
                format!("client sent SETTINGS frame with incorrect {name} value {value}")
            };
            match setting {
                Setting::InitialWindowSize(size) if size > frame::MAX_WINDOW => {
                    return broken(ErrorCode::FlowControl, wrong("INITIAL_WINDOW_SIZE", size));
                }
                Setting::InitialWindowSize(size) => window = Some(size),
                Setting::MaxFrameSize(size) if !(16_384..1 << 24).contains(&size) => {
                    return broken(ErrorCode::Protocol, wrong("MAX_FRAME_SIZE", size));
                }
                Setting::MaxFrameSize(size) => self.link.set_frame_size(size),
                Setting::EnablePush(on) if on > 1 => {
                    return broken(ErrorCode::Protocol, wrong("ENABLE_PUSH", on));
                }
                Setting::HeaderTableSize(_) => self.link.change_table(),
                _ => {}
            }
        }
        self.link.write(frame::write_settings_ack);
        if let Some(size) = window {
            for stream in self.link.set_initial_window(size) {
                stream.reset(ErrorCode::FlowControl);
            }
        }
        Ok(())
    }

    pub(super) fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        if head.len != 8 {
            let text = format!("client sent PING frame with incorrect length {}", head.len);
            return broken(ErrorCode::FrameSize, text);
        }
        if head.stream != 0 {
            let text = "client sent PING frame with incorrect identifier";
            return broken(ErrorCode::Protocol, text);
        }
        if !head.has(frame::ACK) {
            self.link.write(|out| frame::write_pong(payload, out));
        }
        Ok(())
    }

    pub(super) fn window_update(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let Some(by) = frame::word(payload).map(|word| word & frame::MAX_WINDOW) else {
            let text =
                format!("client sent WINDOW_UPDATE frame with incorrect length {}", head.len);
            return broken(ErrorCode::FrameSize, text);
        };
        if by == 0 {
            let text = "client sent WINDOW_UPDATE frame with incorrect window increment 0";
            return broken(ErrorCode::Protocol, text);
        }
        if head.stream > self.history.last {
            let text = format!("client sent WINDOW_UPDATE frame for idle stream {}", head.stream);
            return broken(ErrorCode::Protocol, text);
        }
        if head.stream > 0 {
            if let Some(stream) = self.link.stream(head.stream)
                && !stream.way().extend(i64::from(by))
            {
                self.log(format_args!(
                    "client violated flow control for stream {}: received WINDOW_UPDATE frame \
                     with window increment {by} not allowed",
                    head.stream
                ));
                stream.reset(ErrorCode::FlowControl);
            }
            return Ok(());
        }
        if self.link.extend(by) {
            return Ok(());
        }
        broken(
            ErrorCode::FlowControl,
            format!(
                "client violated connection flow control: received WINDOW_UPDATE frame with \
                 window increment {by} not allowed"
            ),
        )
    }
}

/// GOAWAY: the client opens no more streams; those that it has go on.
pub(super) fn goaway(head: FrameHead) -> Read {
    if head.len < 8 {
        let text = format!("client sent GOAWAY frame with incorrect length {}", head.len);
        return broken(ErrorCode::FrameSize, text);
    }
    if head.stream != 0 {
        let text = "client sent GOAWAY frame with incorrect identifier";
        return broken(ErrorCode::Protocol, text);
    }
    Ok(())
}
