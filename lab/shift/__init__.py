"""Shifted and foreign inputs: does a network know less where it should?"""
