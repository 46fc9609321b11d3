// SPDX-License-Identifier: Apache-2.0
//! A histogram that counts all values of a reply or of an event at once.
//!
//! The histogram of the prometheus crate searches the bucket of each value and updates atomics per value, which was measured to cost more
//! than printing the values. This one searches without branches and updates the atomics once per call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// The maximum number of edges.
const MOST: usize = 16;

/// The counts of one set of labels.
#[derive(Debug)]
pub struct Tally {
    /// Upper bounds of the buckets, ascending. Unused ones are infinite.
    edges: [f32; MOST],
    counts: [AtomicU64; MOST + 1],
    /// The bits of a double.
    sum: AtomicU64,
}

impl Tally {
    fn new(edges: &[f64]) -> Self {
        debug_assert!(edges.len() <= MOST && edges.is_sorted(), "the search needs ascending edges");
        let mut all = [f32::INFINITY; MOST];
        all.iter_mut().zip(edges).for_each(|(slot, edge)| *slot = *edge as f32);
        Self { edges: all, counts: std::array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }
    }

    /// Counts the finite values.
    pub fn observe(&self, values: impl Iterator<Item = f32>) {
        let mut counts = [0_u32; MOST + 1];
        let mut sum = 0.0;
        for value in values.filter(|value| value.is_finite()) {
            // a binary search without branches
            let mut below = 0;
            for half in [8, 4, 2, 1, 1] {
                below += half * usize::from(value > self.edges[below + half - 1]);
            }
            counts[below] += 1;
            sum += f64::from(value);
        }
        for (total, count) in self.counts.iter().zip(counts).filter(|(_, count)| *count > 0) {
            total.fetch_add(count.into(), Ordering::Relaxed);
        }
        let add = |bits: u64| Some((f64::from_bits(bits) + sum).to_bits());
        // the closure always gives a value, so the update always succeeds
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    fn histogram(&self, edges: &[f64]) -> Histogram {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let mut histogram = Histogram::default();
        let mut below = 0;
        let buckets = edges.iter().zip(&counts).map(|(edge, count)| {
            below += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*edge);
            bucket.set_cumulative_count(below);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(counts.iter().sum());
        histogram.set_sample_sum(f64::from_bits(self.sum.load(Ordering::Relaxed)));
        histogram
    }
}

/// Tallies by labels.
#[derive(Debug, Clone)]
pub struct Tallies {
    desc: Desc,
    edges: Vec<f64>,
    // locked for one lookup or one scrape
    tallies: Arc<Mutex<HashMap<Vec<String>, Arc<Tally>>>>,
}

impl Tallies {
    /// A histogram with these labels and edges.
    ///
    /// # Errors
    /// When the name or a label is ill-formed.
    pub(super) fn try_new(name: String, help: &str, labels: &[&str], edges: &[f64]) -> prometheus::Result<Self> {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(name, help.to_owned(), labels, HashMap::new())?;
        Ok(Self { desc, edges: edges.to_vec(), tallies: Arc::default() })
    }

    /// The tally of these label values, one for each label.
    #[must_use]
    pub fn with(&self, values: &[&str]) -> Arc<Tally> {
        debug_assert_eq!(values.len(), self.desc.variable_labels.len(), "one value per label");
        let key: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        let mut tallies = self.tallies.lock();
        Arc::clone(tallies.entry(key).or_insert_with(|| Arc::new(Tally::new(&self.edges))))
    }
}

impl Collector for Tallies {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let tallies = self.tallies.lock();
        let metrics = tallies.iter().map(|(values, tally)| {
            let pairs = self.desc.variable_labels.iter().zip(values).map(|(name, value)| {
                let mut pair = LabelPair::default();
                pair.set_name(name.clone());
                pair.set_value(value.clone());
                pair
            });
            let mut metric = Metric::default();
            metric.set_label(pairs.collect());
            metric.set_histogram(tally.histogram(&self.edges));
            metric
        });
        let mut family = MetricFamily::default();
        family.set_metric(metrics.collect());
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        vec![family]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ENTROPY_BUCKETS;
    use proptest::prelude::*;

    const EDGES: [f64; 4] = [0.001, 0.1, 0.7, 13.0];

    fn value() -> impl Strategy<Value = f32> {
        let edge = prop::sample::select(ENTROPY_BUCKETS.to_vec()).prop_map(|edge| edge as f32);
        prop_oneof![0_f32..15.0, Just(0.1), Just(0.7), edge, Just(f32::NAN)]
    }

    proptest! {
        #[test]
        fn counts_as_the_prometheus_crate(
            values in prop::collection::vec(value(), 0..200),
            edges in prop_oneof![Just(&EDGES[..]), Just(&ENTROPY_BUCKETS[..])],
        ) {
            let ours = Tally::new(edges);
            let theirs = prometheus::Histogram::with_opts(prometheus::HistogramOpts::new("h", "h").buckets(edges.to_vec())).unwrap();
            ours.observe(values.iter().copied());
            for value in values.iter().filter(|value| value.is_finite()) {
                // the edges of a tally are float32
                let edge = edges.iter().find(|edge| **edge as f32 == *value);
                theirs.observe(edge.copied().unwrap_or(f64::from(*value)));
            }
            let ours = ours.histogram(edges);
            prop_assert_eq!(ours.get_sample_count(), theirs.get_sample_count());
            prop_assert!((ours.get_sample_sum() - theirs.get_sample_sum()).abs() < 1e-4);
            let theirs = theirs.collect();
            let theirs = theirs[0].get_metric()[0].get_histogram();
            for (ours, theirs) in ours.get_bucket().iter().zip(theirs.get_bucket()) {
                prop_assert_eq!((ours.upper_bound(), ours.cumulative_count()), (theirs.upper_bound(), theirs.cumulative_count()));
            }
        }
    }
}
