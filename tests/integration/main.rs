//! Everything through the door a user uses: real sockets, a real tokentap, a real fake behind it.

mod accuracy;
mod documents;
mod entropy;
mod giving_way;
mod guard;
mod oracle;
mod recordings;
mod streams;
mod support;
