"""What `loadtest/locustfile.py` is made of; knows neither Locust nor specray."""
