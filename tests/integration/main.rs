//! Everything through the door a user uses: real sockets, a real tokentap, a real fake behind it.

mod recordings;
mod support;
