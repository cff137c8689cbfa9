"""Operations whose time is that of their memory traffic."""
