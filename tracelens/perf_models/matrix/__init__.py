"""Operations whose work is matrix multiplication, convolutions and expert layers included."""
