//! Which value is the best when every measurement is noisy: all run, the slower half drops out, the
//! rest runs again, and so on.

/// A value must be better than the one in force by this much to take its place.
const ADVANTAGE: f64 = 1.02;

#[derive(Debug)]
pub(super) struct Race {
    /// Everybody who started; the first is the value in force.
    entrants: Vec<Entrant>,
    /// Who runs in this round, in order, and who of them is next.
    round: Vec<usize>,
    turn: usize,
    points_left: usize,
}

#[derive(Debug)]
struct Entrant {
    value: u64,
    total: f64,
    runs: u32,
}

impl Entrant {
    fn mean(&self) -> f64 {
        self.total / f64::from(self.runs.max(1))
    }
}

impl Race {
    /// A race between `current` and the others, of at most so many runs. With fewer runs than
    /// others, only some of the others start, evenly chosen.
    pub(super) fn new(current: u64, others: &[u64], runs: usize) -> Race {
        let others: Vec<u64> = others.iter().copied().filter(|value| *value != current).collect();
        let room = runs.saturating_sub(1).max(1).min(others.len());
        let chosen = (0..room).map(|index| others[index * others.len() / room]);
        let entrant = |value| Entrant { value, total: 0.0, runs: 0 };
        let entrants: Vec<Entrant> = std::iter::once(current).chain(chosen).map(entrant).collect();
        let round: Vec<usize> = (0..entrants.len()).collect();
        let points_left = runs.max(round.len()) - round.len();
        Race { entrants, round, turn: 0, points_left }
    }

    /// Who runs now.
    pub(super) fn runner(&self) -> u64 {
        let turn = self.turn.min(self.round.len() - 1);
        self.entrants[self.round[turn]].value
    }

    /// How fast the runner was.
    pub(super) fn score(&mut self, score: f64) {
        let Some(runner) = self.round.get(self.turn) else { return };
        let entrant = &mut self.entrants[*runner];
        entrant.total += score;
        entrant.runs += 1;
        self.turn += 1;
        if self.turn == self.round.len() {
            self.next_round();
        }
    }

    /// The best value and its mean score, when the race is over.
    pub(super) fn winner(&self) -> Option<(u64, f64)> {
        if self.turn < self.round.len() {
            return None;
        }
        let current = &self.entrants[0];
        let fastest = &self.entrants[*self.ranking().first()?];
        let winner = if fastest.mean() > current.mean() * ADVANTAGE { fastest } else { current };
        Some((winner.value, winner.mean()))
    }

    /// The faster half runs again, in the other direction, so that a machine that slows down over
    /// time favours nobody; unless one is left, or there is no room for another round.
    fn next_round(&mut self) {
        let ranking = self.ranking();
        let kept = ranking.len().div_ceil(2);
        if ranking.len() < 2 || kept < 2 || kept > self.points_left {
            return;
        }
        let mut next: Vec<usize> = ranking[..kept].to_vec();
        next.sort_unstable();
        if self.round.first() < self.round.last() {
            next.reverse();
        }
        self.points_left -= kept;
        (self.round, self.turn) = (next, 0);
    }

    /// This round's runners, the fastest first.
    fn ranking(&self) -> Vec<usize> {
        let mut ranking = self.round.clone();
        let mean = |index: &usize| self.entrants[*index].mean();
        ranking.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        ranking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs to the end; gives who ran, in order, and the winner.
    fn run(mut race: Race, speed: impl Fn(u64) -> f64) -> (Vec<u64>, u64) {
        let mut ran = Vec::new();
        loop {
            if let Some((winner, _)) = race.winner() {
                return (ran, winner);
            }
            ran.push(race.runner());
            race.score(speed(race.runner()));
        }
    }

    #[test]
    fn the_slower_half_drops_out_each_time() {
        let (ran, winner) = run(Race::new(4, &[1, 2, 3, 4, 5, 6, 7, 8], 20), |value| value as f64);
        assert_eq!(ran, [4, 1, 2, 3, 5, 6, 7, 8, 8, 7, 6, 5, 7, 8]);
        assert_eq!(winner, 8);
    }

    #[test]
    fn it_ends_within_its_runs_whatever_their_number() {
        for runs in 0..40 {
            for others in 1..9u64 {
                let others: Vec<u64> = (1..=others).collect();
                let (ran, winner) = run(Race::new(1, &others, runs), |value| value as f64);
                assert!(ran.len() <= runs.max(2), "{runs}: {ran:?}");
                assert_eq!(winner, *ran.iter().max().unwrap());
            }
        }
    }

    #[test]
    fn a_hair_is_not_enough_to_replace_what_is_in_force() {
        let (_, winner) =
            run(Race::new(5, &[1, 2, 3], 20), |value| if value == 2 { 1.01 } else { 1.0 });
        assert_eq!(winner, 5);
    }
}
