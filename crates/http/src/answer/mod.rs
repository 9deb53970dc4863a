//! The answer, from what a handler fills in to the bytes that leave: [`response`] is what will be answered, header
//! filters and [`change`] change it, [`head`] writes it, bodies go through [`filters`] and codings, and [`output`] sends.

pub mod change;
mod content_type;
pub mod cutter;
pub mod errors;
pub mod filters;
pub mod head;
pub mod headers;
pub mod output;
pub mod rate;
pub mod response;
pub mod special;
