"""Operations that move bytes between ranks."""
