//! One file for each of the parsers; each rule of nginx has its test.

mod bodies;
mod composed;
mod requests;
mod responses;
