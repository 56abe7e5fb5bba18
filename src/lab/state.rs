//! Which lab of this user runs, as `up` leaves it for `status` and `down`?
