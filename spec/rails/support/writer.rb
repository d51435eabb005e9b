# frozen_string_literal: true

# A process that changes the texts of records beside others that do the same. Takes a seed.
require "active_record"
require "json"
require "candle/active_record"

ActiveRecord::Base.establish_connection(JSON.parse(ENV.fetch("SPEC_DATABASE")))

# The table that all of them write to.
class Article < ActiveRecord::Base
  has_embedding :content, :language, model: ENV.fetch("SPEC_MODEL"), dimensions: 32
end

random = Random.new(Integer(ARGV.first))
objects = Article.all.to_a
Candle::ModelRegistry.shared.preload(ENV.fetch("SPEC_MODEL"))
$stdout.puts "ready"
$stdout.flush
$stdin.gets
# Objects are kept, so that what they know of their rows gets old.
60.times do |number|
  object = objects.sample(random: random)
  attribute = %i[content language].sample(random: random)
  object.update!(attribute => "text #{Process.pid} #{number} #{attribute}")
  sleep(random.rand * 0.01)
end
