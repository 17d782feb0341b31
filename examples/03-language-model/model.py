"""A small transformer that reads letters and predicts the next one."""

import torch
from torch import nn


class LanguageModel(nn.Module):
    """Scores for the next letter at every position of a passage."""

    def __init__(self, letters, context, width, layers, heads=4):
        super().__init__()
        self.context = context
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)

    def forward(self, codes):
        places = torch.arange(codes.shape[1])
        return self.head(self.norm(self.blocks(self.letter(codes) + self.place(places))))

    @torch.no_grad()
    def continued(self, codes, count, generator):
        """The passage with `count` more letters, sampled with `generator`."""
        for _ in range(count):
            scores = self(codes[-self.context :].unsqueeze(0))[0, -1]
            choice = torch.multinomial(scores.softmax(0), 1, generator=generator)
            codes = torch.cat([codes, choice])
        return codes.tolist()


class Block(nn.Module):
    """Causal attention, then two layers; each is added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.questions = nn.Linear(width, 3 * width)
        self.answers = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, passage):
        passage = passage + self.attend(self.before(passage))
        return passage + self.layers(self.between(passage))

    def attend(self, passage):
        batch, length, width = passage.shape
        split = self.questions(passage).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.answers(mixed.transpose(1, 2).reshape(batch, length, width))
